"""A router's view of the ledger: all live replicas, refreshed in the background, and reservations.

Loss of Redis never reaches the caller, except that ``reserve`` says it cannot: the last view stays, with its age.
"""

import asyncio
import logging
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from prometheus_client import CollectorRegistry
from redis.exceptions import ResponseError

from services.common.ledger import scripts
from services.common.ledger.config import LedgerConfig
from services.common.ledger.connection import LEDGER_ERRORS, Backoff, connect_async, explain
from services.common.ledger.metrics import ViewMetrics
from services.common.ledger.outage import Outage
from services.common.ledger.reading import LedgerReader
from services.common.ledger.schema import FleetKeys
from services.common.ledger.types import LedgerReplica, LedgerUnavailableError

_log = logging.getLogger(__name__)

_MAX_CALLS_IN_FLIGHT = 32
"""Reservation calls sent to Redis at once; more wait their turn here, within the command timeout."""

MOST_HOLDERS = 8
"""Replicas that a look-up of prefixes answers with."""

CROWD = 64
"""A prefix that more replicas have says nothing of where to go."""

_MAX_REMEMBERED = 65536
"""Reservations whose replica is remembered for ``release``."""


class _Redis:
    """The connections of a started view and what it calls there."""

    def __init__(self, config: LedgerConfig) -> None:
        self.client = connect_async(config, _MAX_CALLS_IN_FLIGHT + 1)
        self.reader = LedgerReader(self.client, config.fleet)
        self.scripts = {name: self.client.register_script(scripts.load(name)) for name in ("reserve", "release")}
        self.scripts["prefix_find"] = self.client.register_script(scripts.load_find())


class LedgerView:
    """Reads and reserves for one router. Belongs to the event loop that started it.

    A reservation is an amount of blocks at a replica under an id that the caller makes up, new for every
    replica that is tried. It ends by ``release``, by the replica's admission, or by its lease; the replica renews it
    while the request waits in its queue. Call ``release`` for every id that was not refused.
    """

    def __init__(self, config: LedgerConfig, metrics: ViewMetrics | None = None) -> None:
        self._config = config
        self._metrics = metrics or ViewMetrics(CollectorRegistry())
        self._keys = FleetKeys(config.fleet)
        self._outage = Outage("this router", config.place, self._metrics.reachable)
        self._replicas: Mapping[str, LedgerReplica] = {}
        self._read_at = -math.inf
        self._suspect = False
        """A call had no answer since the last reading."""
        self._slots = asyncio.Semaphore(_MAX_CALLS_IN_FLIGHT)
        self._open: dict[str, str] = {}
        """Replica of every reservation that was asked for and not released."""
        self._redis: _Redis | None = None
        self._refresher: asyncio.Task[None] | None = None

    @property
    def replicas(self) -> Mapping[str, LedgerReplica]:
        """Live replicas of the last reading, by id. Replaced, never changed: safe to keep while choosing."""
        return self._replicas

    @property
    def age_s(self) -> float:
        """Seconds since the last reading; infinite before the first."""
        return time.monotonic() - self._read_at

    @property
    def reachable(self) -> bool:
        """Whether Redis answered last time."""
        return self._outage.reachable and not self._suspect

    @property
    def reason(self) -> str:
        """Why Redis is not reachable, for health and status; empty while it is."""
        return "the last call had no answer" if self._suspect else self._outage.reason

    async def start(self) -> None:
        """Tries a first reading, then goes on in the background. Returns in bounded time, Redis there or not."""
        if not self._config.enabled or self._redis is not None:
            return
        self._redis = _Redis(self._config)
        await self.refresh()
        self._refresher = asyncio.create_task(self._refresh_for_ever(), name="ledger-view")

    async def close(self) -> None:
        """Stops reading and closes the connections. Reservations stay, for their replicas or their leases."""
        if self._refresher is not None:
            self._refresher.cancel()
            await asyncio.wait([self._refresher], timeout=self._config.connect_timeout_s)
        if self._redis is not None:
            await self._redis.client.aclose()
        self._redis = self._refresher = None
        self._outage.reachable = False

    async def refresh(self) -> bool:
        """Reads once, now. False: Redis did not answer, and the last view stays."""
        redis = self._redis
        if redis is None:
            return False
        try:
            async with asyncio.timeout(self._config.connect_timeout_s + self._config.command_timeout_s):
                rows = await redis.reader.read(detailed=False)
        except LEDGER_ERRORS as error:
            self._outage.failed(explain(error))
            return False
        except Exception as error:  # noqa: BLE001 - a fault of ours must not end the reading for good
            _log.debug("ledger: cannot read", exc_info=True)
            self._outage.failed(f"fault in the view: {error!r}")
            return False
        self._suspect = False
        self._replicas = {row.replica.replica_id: row.replica for row in rows}
        self._read_at = time.monotonic()
        self._outage.over()
        self._metrics.replicas.set(len(rows))
        self._metrics.refreshed_at.set_to_current_time()
        return True

    async def reserve(self, replica_id: str, reservation_id: str, blocks: int) -> bool:
        """Promises ``blocks`` of the replica to one request, for one lease. Asking again with the same id is safe.

        Returns:
            False: beside all other reservations they do not fit.

        Raises:
            LedgerUnavailableError: Redis does not answer in time or does not know the replica (yet). Go on without a
                reservation, and still send the id along: it may exist.
            ValueError: an empty id or no blocks.
        """
        if not replica_id or not reservation_id or blocks <= 0:
            raise ValueError("a reservation needs a replica, an id and at least one block")
        known = reservation_id in self._open
        self._remember(reservation_id, replica_id)
        try:
            verdict, *counts = await self._call("reserve", replica_id, [reservation_id, blocks, self._config.lease_ms])
            if verdict == "UNKNOWN":
                raise LedgerUnavailableError(f"the ledger has no live replica {replica_id!r}")
        except LedgerUnavailableError:
            self._metrics.reservations.labels("unavailable").inc()
            raise
        granted = bool(verdict == "GRANTED")
        if not granted and not known:
            self._open.pop(reservation_id, None)
        self._note(replica_id, *counts)
        self._metrics.reservations.labels(verdict.lower()).inc()
        return granted

    async def prefix_holders(self, names: Sequence[str]) -> dict[str, int]:
        """Live replicas that have the longest prefixes of a prompt cached; never raises.

        Args:
            names: of its prefixes of 1, 2, ... blocks (``services/common/prefix_hash.py``).

        Returns:
            Blocks by replica id, of at most ``MOST_HOLDERS`` replicas; empty where nothing is known.
        """
        if not names:
            return {}
        try:
            keys = [self._keys.prefix_of(name) for name in names]
            found = await self._run("prefix_find", keys, [MOST_HOLDERS, CROWD])
        except LedgerUnavailableError as error:
            _log.debug("ledger: prefixes are not known: %s", error)
            self._metrics.lookups.labels("unavailable").inc()
            return {}
        known = self._replicas
        holders = {
            replica_id: int(blocks)
            for replica_id, generation, blocks in found
            # A replica that started anew has nothing cached of what its earlier self had.
            if replica_id in known and generation == str(known[replica_id].generation)
        }
        self._metrics.lookups.labels("found" if holders else "unknown").inc()
        return holders

    async def release(self, reservation_id: str) -> None:
        """Gives a reservation back, if it is still there. Never raises; what cannot be told now ends by its lease."""
        replica_id = self._open.pop(reservation_id, None)
        if replica_id is None:
            return
        try:
            await self._call("release", replica_id, [reservation_id])
        except LedgerUnavailableError as error:
            _log.debug("ledger: reservation %s is left to its lease: %s", reservation_id, error)

    def _remember(self, reservation_id: str, replica_id: str) -> None:
        self._open[reservation_id] = replica_id
        if len(self._open) > _MAX_REMEMBERED:
            # A caller that never releases; replicas and leases end what is forgotten here.
            del self._open[next(iter(self._open))]

    def _note(self, replica_id: str, free: int, reserved: int) -> None:
        """The next choice shall see this reservation without waiting for the next reading."""
        seen = self._replicas.get(replica_id)
        if seen is not None:
            self._replicas = {**self._replicas, replica_id: replace(seen, free=free, reserved=reserved)}

    async def _call(self, script: str, replica_id: str, args: list[Any]) -> Any:
        return await self._run(script, self._keys.replica(replica_id).as_list(), args)

    async def _run(self, script: str, keys: list[str], args: list[Any]) -> Any:
        redis = self._redis
        if redis is None or not self.reachable:
            # Known to be away: answer at once, the next reading finds out when it is back.
            raise LedgerUnavailableError(f"the ledger at {self._config.place} is away: {self.reason}")
        try:
            async with asyncio.timeout(self._config.command_timeout_s):
                await self._slots.acquire()
        except TimeoutError as error:
            raise LedgerUnavailableError(f"{_MAX_CALLS_IN_FLIGHT} calls to the ledger are in flight already") from error
        try:
            async with asyncio.timeout(self._config.command_timeout_s):
                return await redis.scripts[script](keys=keys, args=args)
        except LEDGER_ERRORS as error:
            # Redis that refuses is there; one that says nothing may be gone, and the next caller shall not wait too.
            if not isinstance(error, ResponseError):
                self._suspect = True
            raise LedgerUnavailableError(f"ledger at {self._config.place}: {script}: {explain(error)}") from error
        finally:
            self._slots.release()

    async def _refresh_for_ever(self) -> None:
        backoff = Backoff()
        while True:
            if await self.refresh():
                backoff.succeeded()
                await asyncio.sleep(self._config.refresh_interval_s)
            else:
                await asyncio.sleep(backoff.failed())
