"""Reads the ledger's live replicas: what ``lua/read.lua`` answers, as plain values.

What is in Redis may have been written by another version or by hand: an entry that makes no sense is left out and
named in the log, and the others are read.
"""

import asyncio
import json
import logging
from collections.abc import Iterator, Mapping

from services.common.ledger import scripts
from services.common.ledger.config import LedgerConfig
from services.common.ledger.connection import LEDGER_ERRORS, AnyAsyncRedis, connect_async, explain
from services.common.ledger.schema import FleetKeys
from services.common.ledger.types import LedgerReplica, LedgerRow, LedgerUnavailableError, Reservation

_log = logging.getLogger(__name__)


class LedgerReader:
    """Reads all replicas of a fleet in one round trip."""

    def __init__(self, client: AnyAsyncRedis, fleet: str) -> None:
        self._keys = FleetKeys(fleet)
        self._script = client.register_script(scripts.load_read())

    async def read(self, *, detailed: bool) -> list[LedgerRow]:
        """Live replicas by id; requests and reservations only if ``detailed``. Raises ``LEDGER_ERRORS``."""
        reply = await self._script(keys=[self._keys.index], args=[self._keys.prefix, int(detailed)])
        return list(parse_reply(reply))


async def read_ledger(config: LedgerConfig) -> list[LedgerRow]:
    """All that the ledger has, for people and checks. Raises ``LedgerUnavailableError``."""
    if not config.enabled:
        raise LedgerUnavailableError("no ledger is configured (ledger.url is null)")
    try:
        async with (
            asyncio.timeout(config.connect_timeout_s + config.command_timeout_s),
            connect_async(config, max_connections=1) as client,
        ):
            return await LedgerReader(client, config.fleet).read(detailed=True)
    except LEDGER_ERRORS as error:
        raise LedgerUnavailableError(f"cannot read the ledger at {config.place}: {explain(error)}") from error


def parse_reply(reply: str) -> Iterator[LedgerRow]:
    """Rows of the read script's answer, by replica id."""
    decoded = json.loads(reply)
    now_ms = int(decoded["now_ms"])
    # An empty Lua table becomes {}, where a list was meant, too.
    for entry in sorted(decoded["replicas"], key=lambda entry: str(entry["id"])):
        # Between the expiry of an entry's hash and that of its name there may be a millisecond.
        if not entry["fields"]:
            continue
        try:
            yield LedgerRow(
                replica=_replica(entry["id"], entry["fields"], now_ms, int(entry["reserved"])),
                held_requests={request: int(blocks) for request, blocks in entry.get("held", {}).items()},
                reservations=tuple(
                    Reservation(reservation_id, int(blocks), (float(expiry_ms) - now_ms) / 1000)
                    for reservation_id, expiry_ms, blocks in entry.get("reservations", ())
                ),
            )
        except (KeyError, ValueError) as error:
            _log.warning("ledger: entry of replica %r is not readable: %r", entry["id"], error)


def _replica(replica_id: str, fields: Mapping[str, str], now_ms: int, reserved: int) -> LedgerReplica:
    return LedgerReplica(
        replica_id=replica_id,
        generation=int(fields["generation"]),
        address=fields["address"],
        total=int(fields["total"]),
        free=int(fields["free"]),
        held=int(fields["held"]),
        reserved=reserved,
        forecast_peak=int(fields["forecast_peak"]),
        running=int(fields["running"]),
        waiting=int(fields["waiting"]),
        heartbeat_age_s=max(0, now_ms - int(fields["heartbeat"])) / 1000,
    )
