"""Keeps a replica's entry in the ledger true, without ever making the engine wait.

The engine's thread leaves its newest state in a slot; a daemon thread writes it, at most every ``flush_interval_s``
and, as a heartbeat, at least every third of the lease. While Redis is away only the newest state waits, and attempts
go on for ever.
"""

import logging
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from prometheus_client import CollectorRegistry

from services.common.ledger.config import LedgerConfig
from services.common.ledger.connection import LEDGER_ERRORS, AnyRedis, Backoff, connect, explain
from services.common.ledger.metrics import WriterMetrics
from services.common.ledger.outage import Outage
from services.common.ledger.replica_entry import GenerationFencedError, ReplicaEntry
from services.common.ledger.replica_prefixes import ReplicaPrefixes
from services.common.ledger.types import EngineState, ReplicaTotals

_log = logging.getLogger(__name__)

_MAX_HEARTBEAT_S = 1.0
"""An idle replica finds out within this time, in seconds, that Redis lost its entry."""

_MOST_PREFIX_CHANGES = 65_536
"""Changes that wait for a writer which has never reached Redis; the oldest are forgotten, which costs cache hits."""

_NOTHING: Mapping[str, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class _Pen:
    """A connection and what writes through it."""

    client: AnyRedis
    entry: ReplicaEntry
    prefixes: ReplicaPrefixes


class LedgerWriter:
    """One replica's pen. Any thread may call any method, and none but ``close`` waits for anything.

    The constructor opens nothing and starts no thread, so it may run before a process forks. ``generation`` counts
    starts of the replica: once a higher one has written, this one is refused.

    Order of a step, so that no block is counted twice or missed: ``admitted`` for every request that came to hold
    blocks, then ``publish`` with those blocks. Both reach the ledger in one atomic write. A request that was in
    ``waiting`` once and is no longer has its reservation ended in the same way, without a call.
    """

    def __init__(
        self,
        config: LedgerConfig,
        replica_id: str,
        address: str,
        generation: int,
        metrics: WriterMetrics | None = None,
    ) -> None:
        self._config = config
        self._replica_id = replica_id
        self._address = address
        self._generation = generation
        self._metrics = metrics or WriterMetrics(CollectorRegistry())
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._state: EngineState | None = None
        self._ended: list[str] = []
        """Reservations ended since the last ``publish``: the state in the slot knows nothing of them yet."""
        self._settled: list[str] = []
        """Reservations that the state in the slot accounts for, not handed to the entry yet."""
        self._prefixes: dict[str, bool] = {}
        """Prefixes that came into the cache (True) or left it since the last write."""
        self._pen: _Pen | None = None
        """Made at the first write, by the thread."""
        self._fenced = False
        self._heartbeat_s = min(config.lease_s / 3, _MAX_HEARTBEAT_S)
        self._idle_wait_s = max(0.0, self._heartbeat_s - config.flush_interval_s)
        self._outage = Outage(f"replica {replica_id}", config.place, self._metrics.reachable)

    @property
    def reachable(self) -> bool:
        """Whether Redis took the last write."""
        return self._outage.reachable

    @property
    def fenced(self) -> bool:
        """Whether a newer generation of this replica writes instead."""
        return self._fenced

    def start(self) -> None:
        """Starts writing. Redis need not be there; without a ledger in the configuration this does nothing."""
        if not self._config.enabled or self._thread is not None:
            return
        self._thread = threading.Thread(target=self._run, name="ledger-writer", daemon=True)
        self._thread.start()

    def publish(
        self, totals: ReplicaTotals, held: Mapping[str, int] = _NOTHING, waiting: Mapping[str, int] = _NOTHING
    ) -> None:
        """Leaves the engine's newest state for writing; the latest wins.

        Args:
            totals: the replica's counts.
            held: blocks held, by request id, of every request that holds any.
            waiting: blocks needed first, by reservation id (request id where it has none), of every request in the
                replica's queue. Their reservations are renewed as long as they wait, and made anew if they were lost.
        """
        state = EngineState(totals, dict(held), dict(waiting))
        with self._lock:
            self._state = state
            self._settled += self._ended
            self._ended.clear()
        self._wake.set()

    def prefixes(self, stored: Iterable[str], removed: Iterable[str]) -> None:
        """Prefixes came into the replica's cache or left it, by name; see ``services/common/prefix_hash.py``."""
        if self._thread is None:
            return
        with self._lock:
            self._prefixes.update(dict.fromkeys(stored, True))
            self._prefixes.update(dict.fromkeys(removed, False))
            while len(self._prefixes) > _MOST_PREFIX_CHANGES:
                del self._prefixes[next(iter(self._prefixes))]
        # No wake-up: they go with the step's state, or with the next heartbeat.

    def admitted(self, reservation_id: str) -> None:
        """The request of this reservation holds blocks from the next ``publish`` on; empty ids are ignored."""
        self._end(reservation_id)

    def released(self, reservation_id: str) -> None:
        """The request of this reservation ended before it held blocks; empty ids are ignored."""
        self._end(reservation_id)

    def close(self, timeout_s: float = 2.0) -> None:
        """Removes the entry if Redis answers, else leaves it to its lease. Returns within ``timeout_s``."""
        self._stopping.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _end(self, reservation_id: str) -> None:
        if reservation_id and self._thread is not None:
            with self._lock:
                self._ended.append(reservation_id)

    def _run(self) -> None:
        backoff = Backoff()
        while not self._stopping.is_set():
            self._wake.wait(self._idle_wait_s)
            self._wake.clear()
            if self._stopping.is_set():
                break
            if self._flush():
                backoff.succeeded()
                self._stopping.wait(self._config.flush_interval_s)
                if self._pen is not None and self._pen.prefixes.is_behind:
                    self._wake.set()
            else:
                self._stopping.wait(self._heartbeat_s if self._fenced else backoff.failed())
                self._wake.set()
        if self._pen is not None:
            if self._outage.reachable:
                self._retire(self._pen.entry)
            self._pen.client.close()

    def _flush(self) -> bool:
        """Writes the newest state; false: it did not arrive, and the next call writes it or a newer one."""
        if self._state is None:
            return True
        try:
            with self._metrics.write_seconds.time():
                whole = self._write()
        except GenerationFencedError as error:
            self._tell_fenced(error)
            return False
        except LEDGER_ERRORS as error:
            self._failed(explain(error))
            return False
        except Exception as error:  # noqa: BLE001 - a fault of ours must not end the thread: silence means death
            _log.debug("ledger: cannot write the entry of %s", self._replica_id, exc_info=True)
            self._failed(f"fault in the writer: {error!r}")
            return False
        self._fenced = False
        self._outage.over()
        self._metrics.writes.labels("written").inc()
        self._metrics.rebuilds.inc(whole)
        return True

    def _write(self) -> bool:
        """The entry, then the prefixes. Whether the entry was written whole."""
        if self._pen is None:
            self._pen = self._connect()
        pen = self._pen
        with self._lock:
            state, settled, changed = self._state, self._settled, self._prefixes
            self._settled, self._prefixes = [], {}
        if state is None:
            return False
        pen.prefixes.change(
            [name for name, is_there in changed.items() if is_there],
            [name for name, is_there in changed.items() if not is_there],
        )
        whole = pen.entry.write(state, settled)
        if whole:
            pen.prefixes.lost()
        pen.prefixes.write()
        return whole

    def _connect(self) -> "_Pen":
        client = connect(self._config)
        return _Pen(
            client,
            ReplicaEntry(client, self._config, self._replica_id, self._address, self._generation),
            ReplicaPrefixes(client, self._config, self._replica_id, self._generation),
        )

    def _failed(self, reason: str) -> None:
        self._outage.failed(reason)
        self._metrics.writes.labels("failed").inc()

    def _tell_fenced(self, error: GenerationFencedError) -> None:
        self._metrics.writes.labels("fenced").inc()
        if not self._fenced:
            self._fenced = True
            _log.error("ledger: entry of %s is not ours: %s; is this process a left-over?", self._replica_id, error)

    def _retire(self, entry: ReplicaEntry) -> None:
        try:
            entry.retire()
        except (*LEDGER_ERRORS, GenerationFencedError) as error:
            _log.info("ledger: entry of %s is left to its lease: %s", self._replica_id, explain(error))
