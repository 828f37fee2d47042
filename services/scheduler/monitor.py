"""Watches what the replica stands on: the stage processes from outside, and the engine itself."""

import asyncio
import time
from collections.abc import Callable, Sequence

import grpc
import grpc.aio
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.scheduler.engine import Engine
from services.scheduler.status import ReplicaStatus

CHECK_INTERVAL_S = 1.0
CHECK_DEADLINE_S = 2.0
ENGINE_CHECK_INTERVAL_S = 0.5

_log = structlog.get_logger(__name__)


class StageMonitor:
    """Asks each stage for its health every second; a stage answers while it computes.

    A stage that does not say SERVING for ``stall_after_s`` makes the replica STALLED until it does again. Whether a
    stage is lost for good is for the engine to say, which has a stream open to it.
    """

    def __init__(
        self,
        channels: Sequence[tuple[str, grpc.aio.Channel]],
        status: ReplicaStatus,
        stall_after_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``channels``: each stage's address and a channel to it, owned by the caller."""
        self._channels = channels
        self._status = status
        self._stall_after_s = stall_after_s
        self._clock = clock
        self._silent: set[str] = set()

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            for address, channel in self._channels:
                group.create_task(self._watch(address, health_pb2_grpc.HealthStub(channel)))

    async def _watch(self, address: str, health: "health_pb2_grpc.HealthStub") -> None:
        last_answer = self._clock()
        while True:
            started = self._clock()
            if await self._answers(health):
                last_answer = self._clock()
            self._note(address, is_silent=self._clock() - last_answer > self._stall_after_s)
            await asyncio.sleep(max(0.0, CHECK_INTERVAL_S - (self._clock() - started)))

    async def _answers(self, health: "health_pb2_grpc.HealthStub") -> bool:
        try:
            response = await health.Check(health_pb2.HealthCheckRequest(), timeout=CHECK_DEADLINE_S)
        except grpc.aio.AioRpcError:
            return False
        return bool(response.status == health_pb2.HealthCheckResponse.SERVING)

    def _note(self, address: str, *, is_silent: bool) -> None:
        if is_silent == (address in self._silent):
            return
        if is_silent:
            _log.warning("stage does not answer", stage=address, after_s=self._stall_after_s)
            self._silent.add(address)
        else:
            _log.info("stage answers again", stage=address)
            self._silent.discard(address)
        if self._silent:
            self._status.stall(f"no answer from stage {', '.join(sorted(self._silent))}")
        else:
            self._status.recover()


async def watch_engine(engine: Engine, status: ReplicaStatus) -> None:
    """Notices an engine that dies while no request is there to find out. Returns then."""
    while engine.alive:  # noqa: ASYNC110  (engines learn of their death in threads; half a second is soon enough)
        await asyncio.sleep(ENGINE_CHECK_INTERVAL_S)
    status.lose("the engine died")
