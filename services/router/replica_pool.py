"""The replicas that this router knows, each with its session.

Configured ones stay for ever; discovered ones stay while they live.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping

import grpc.aio
import structlog

from services.common.errors import ConfigError, RequestEndedError, invalid, unavailable
from services.common.ledger import LedgerReplica
from services.common.outcome import Outcome
from services.common.types import ReplicaInfo, ReplicaState
from services.router.change_signal import ChangeSignal
from services.router.replica_session import ReplicaSession

DISCOVERY_INTERVAL_S = 0.5

LiveReplicas = Callable[[], Mapping[str, LedgerReplica]]
"""The ledger's newest view, read without waiting."""

_log = structlog.get_logger(__name__)


class ReplicaPool:
    """Life: ``start`` -> sessions come and go by themselves -> ``close``."""

    def __init__(
        self,
        configured: Mapping[str, str],
        router_id: str,
        open_channel: Callable[[str], grpc.aio.Channel],
        changed: ChangeSignal,
        live_replicas: LiveReplicas | None = None,
    ) -> None:
        """``configured`` maps replica ids to addresses; ``live_replicas`` is given when replicas are discovered.

        ``changed`` is notified whenever a replica comes, goes or changes its state.
        """
        self.changed = changed
        self._configured = dict(configured)
        self._live_replicas = live_replicas
        self._router_id = router_id
        self._open_channel = open_channel
        self._sessions: dict[str, ReplicaSession] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._refused: set[tuple[str, str]] = set()
        self._discovery: asyncio.Task[None] | None = None

    @property
    def sessions(self) -> Mapping[str, ReplicaSession]:
        """All known replicas, connected or not."""
        return self._sessions

    @property
    def is_serving(self) -> bool:
        """At least one replica takes requests."""
        return self.serves("")

    def serves(self, model: str) -> bool:
        """At least one replica takes requests for ``model``; empty: for any."""
        sessions = self._sessions.values()
        return any(session.state is ReplicaState.SERVING and _serves(session, model) for session in sessions)

    @property
    def model_names(self) -> tuple[str, ...]:
        """Names that some replica serves, or served when it was last heard of."""
        return tuple(dict.fromkeys(name for info in self._infos() for name in info.model_names))

    async def start(self) -> None:
        """Opens sessions; returns at once, connected or not. Raises ``ConfigError`` for an address it may not dial."""
        for replica_id, address in self._configured.items():
            self._add(replica_id, address)
        if self._live_replicas is not None:
            self._discovery = asyncio.create_task(self._discover(self._live_replicas), name="discover-replicas")

    async def close(self) -> None:
        """Ends all sessions; requests in flight end with REPLICA_LOST."""
        tasks = [*self._tasks.values(), *([self._discovery] if self._discovery else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._sessions.clear()
        self._tasks.clear()

    def candidates(self, model: str, exclude: Iterable[str] = ()) -> list[ReplicaSession]:
        """Replicas of ``model`` that serve and have a free place. May be empty."""
        excluded = frozenset(exclude)
        return [
            session
            for session in self._sessions.values()
            if session.has_slot and session.replica_id not in excluded and _serves(session, model)
        ]

    def resolve_model(self, model: str) -> tuple[str, ReplicaInfo]:
        """The served name that ``model`` means, and a replica's description of it.

        Raises ``RequestEndedError``: invalid (unknown, or empty while several are served), unavailable when no
        replica of it serves.
        """
        if model and (info := self._serving(model)) is not None:
            return model, info  # the usual case, without a look at the whole fleet
        names = self.model_names
        if model and names and model not in names:
            raise RequestEndedError(
                Outcome.REJECTED_INVALID,
                f"model: {model!r} is not served; served: {', '.join(names)}",
                field="model",
                not_found=True,
            )
        if not model and len({info.model for info in self._infos()}) > 1:
            raise invalid("model", f"several models are served; name one of {', '.join(names)}")
        if (info := self._serving(model)) is None:
            raise unavailable("no replica is serving; try again later")
        return model or info.model_names[0], info

    def any_info(self) -> ReplicaInfo:
        """A replica's description of itself, if possible of one that serves.

        Raises ``RequestEndedError`` (unavailable) when none was ever connected.
        """
        infos = sorted(self._infos(), key=lambda info: info.state is not ReplicaState.SERVING)
        if not infos:
            raise unavailable("no replica has answered yet; try again later")
        return infos[0]

    async def first_info(self) -> ReplicaInfo:
        """What the first replica to answer says of itself; waits for it."""
        while True:
            version = self.changed.version
            for info in self._infos():
                return info
            await self.changed.wait_past(version)

    def _serving(self, model: str) -> ReplicaInfo | None:
        """Of one that serves ``model`` now; empty: any."""
        for session in self._sessions.values():
            if session.info is not None and session.state is ReplicaState.SERVING and _serves(session, model):
                return session.info
        return None

    def _infos(self) -> list[ReplicaInfo]:
        return [session.info for session in self._sessions.values() if session.info is not None]

    def _add(self, replica_id: str, address: str) -> None:
        channel = self._open_channel(address)
        session = ReplicaSession(replica_id, address, self._router_id, channel, self.changed.notify)
        self._sessions[replica_id] = session
        self._tasks[replica_id] = asyncio.create_task(session.run(), name=f"session-{replica_id}")
        self.changed.notify()

    async def _remove(self, replica_id: str) -> None:
        task = self._tasks.pop(replica_id)
        del self._sessions[replica_id]
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        self.changed.notify()

    async def _discover(self, live_replicas: LiveReplicas) -> None:
        while True:
            try:
                await self._follow(live_replicas())
            except Exception:  # noqa: BLE001  (replicas known so far stay; the next look may go better)
                _log.exception("looking for replicas failed")
            await asyncio.sleep(DISCOVERY_INTERVAL_S)

    async def _follow(self, live: Mapping[str, LedgerReplica]) -> None:
        for replica_id, replica in live.items():
            await self._meet(replica_id, replica.address)
        for replica_id, session in list(self._sessions.items()):
            gone = replica_id not in live and replica_id not in self._configured
            # A ledger that lost its memory must not end sessions that work.
            if gone and session.state is ReplicaState.LOST:
                _log.info("replica left the ledger", replica_id=replica_id)
                await self._remove(replica_id)

    async def _meet(self, replica_id: str, address: str) -> None:
        known = self._sessions.get(replica_id)
        if known is None:
            self._add_found(replica_id, address)
        elif known.address != address and known.state is ReplicaState.LOST and replica_id not in self._configured:
            await self._remove(replica_id)
            self._add_found(replica_id, address)

    def _add_found(self, replica_id: str, address: str) -> None:
        if (replica_id, address) in self._refused:
            return
        try:
            self._add(replica_id, address)
        except ConfigError as error:
            self._refused.add((replica_id, address))
            _log.error("replica of the ledger not used", replica_id=replica_id, address=address, reason=str(error))
        else:
            _log.info("replica found in the ledger", replica_id=replica_id, address=address)


def _serves(session: ReplicaSession, model: str) -> bool:
    return session.info is not None and (not model or model in session.info.model_names)
