"""One replica's entry in the ledger, from the side that writes it.

An entry is written whole once and then as changes: the script applies changes only to the very write they were made
from, and answers RESYNC otherwise, as after Redis lost its data. Then the whole state follows at once.
Blocking calls; ``LedgerWriter`` keeps them off the engine's thread.
"""

import json
import time
import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field

from services.common.ledger import scripts
from services.common.ledger.config import LedgerConfig
from services.common.ledger.connection import AnyRedis
from services.common.ledger.schema import FENCE_LEASES, FleetKeys
from services.common.ledger.types import EngineState


class GenerationFencedError(Exception):
    """A newer generation of this replica writes to the ledger; this process is a left-over."""

    def __init__(self, generation: int, newer: int) -> None:
        super().__init__(f"generation {generation} is fenced off by generation {newer}")
        self.newer = newer


@dataclass(frozen=True, slots=True)
class _Written:
    """What Redis is known to have: write number ``sequence``; 0: nothing is known."""

    sequence: int = 0
    held: Mapping[str, int] = field(default_factory=dict)
    waiting: Mapping[str, int] = field(default_factory=dict)


class ReplicaEntry:
    """Writes and retires the entry. Both raise ``LEDGER_ERRORS`` and ``GenerationFencedError``."""

    def __init__(
        self,
        client: AnyRedis,
        config: LedgerConfig,
        replica_id: str,
        address: str,
        generation: int,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._identity = (replica_id, generation, config.lease_ms, config.lease_ms * FENCE_LEASES, uuid.uuid4().hex)
        self._address = address
        self._clock = clock
        self._lease_s = config.lease_s
        self._keys = FleetKeys(config.fleet).replica(replica_id).as_list()
        self._write_script = client.register_script(scripts.load("write"))
        self._retire_script = client.register_script(scripts.load("retire"))
        self._sequence = 0
        self._known = _Written()
        self._open: dict[str, float] = {}
        """Reservations that Redis may have for this replica's requests, by when they are surely gone (``clock``)."""
        self._renewed_at = 0.0

    def write(self, state: EngineState, settled: Collection[str]) -> bool:
        """Writes ``state`` and ends reservations, all at once: those ``settled`` and those that left the queue.

        After an error the next call ends them. Returns whether the entry was written whole.
        """
        self._track(state, settled)
        if self._known.sequence and self._try_write(state, self._known):
            return False
        self._try_write(state, _Written())
        return True

    def retire(self) -> None:
        """Removes the entry and its reservations."""
        replica_id, generation, *_ = self._identity
        self._check_fence(self._retire_script(keys=self._keys, args=[replica_id, generation]))

    def _track(self, state: EngineState, settled: Collection[str]) -> None:
        now = self._clock()
        # Whatever is older than two leases has expired in Redis: the list stays short through any outage.
        self._open = {reservation: gone_at for reservation, gone_at in self._open.items() if gone_at > now}
        self._open.update(dict.fromkeys([*settled, *state.waiting], now + 2 * self._lease_s))

    def _try_write(self, state: EngineState, base: _Written) -> bool:
        """False: Redis does not have ``base``."""
        self._sequence += 1
        now = self._clock()
        renew = not base.sequence or now - self._renewed_at >= self._lease_s / 4
        changes = _changes(base, state, self._open, renew=renew)
        # Until the answer is there nobody knows what Redis has: an error leaves the next write whole.
        self._known = _Written()
        reply = self._write_script(
            keys=self._keys,
            args=[*self._identity, self._sequence, base.sequence, self._address, json.dumps(changes)],
        )
        self._check_fence(reply)
        if reply[0] != "WRITTEN":
            return False
        self._known = _Written(self._sequence, state.held, state.waiting)
        self._open = {reservation: self._open[reservation] for reservation in state.waiting}
        if renew:
            self._renewed_at = now
        return True

    def _check_fence(self, reply: list[str]) -> None:
        if reply[0] == "FENCED":
            raise GenerationFencedError(self._identity[1], int(reply[1]))


def _changes(base: _Written, state: EngineState, open_ids: Collection[str], *, renew: bool) -> dict[str, object]:
    """The script's JSON argument. Queued requests are repeated only to renew their leases."""
    return {
        "totals": asdict(state.totals),
        "held": {request: blocks for request, blocks in state.held.items() if base.held.get(request) != blocks},
        "ended": [request for request in base.held if request not in state.held],
        "settled": [reservation for reservation in open_ids if reservation not in state.waiting],
        "waiting": {
            reservation: blocks
            for reservation, blocks in state.waiting.items()
            if renew or reservation not in base.waiting
        },
    }
