"""The scheduler process from bind to exit.

The port is bound before the engine starts, with health NOT_SERVING: a taken port then fails in milliseconds and not
after the minutes that a large model takes to load, and with port 0 the engine core knows the address it publishes.
Calls are refused with UNAVAILABLE until the engine is ready; then health says SERVING.
"""

import asyncio
import contextlib
import signal
import time
from enum import IntEnum

import structlog
from prometheus_client import REGISTRY

from services.common.daemon_thread import in_thread
from services.common.errors import ConfigError
from services.common.metrics import MetricsServer, ServiceMetrics
from services.common.rpc import aio_channel
from services.common.server import GrpcServer, run_until_signal
from services.common.tracing import setup_tracing
from services.common.types import ReplicaState
from services.scheduler.admission import AdmissionQueue
from services.scheduler.config import SchedulerConfig
from services.scheduler.engine import Engine, EngineLostError
from services.scheduler.engines import build_engine
from services.scheduler.front import Front
from services.scheduler.metrics import SchedulerMetrics
from services.scheduler.monitor import StageMonitor, watch_engine
from services.scheduler.servicer import SERVICE_NAME, SchedulerServicer, add_to_server
from services.scheduler.status import ReplicaStatus
from services.scheduler.tasks import end_tasks

LET_GO_TIMEOUT_S = 2.0
"""What the engine gets to forget requests that are abandoned."""
FLUSH_TIMEOUT_S = 1.0
"""What routers get to read their last events."""
ENGINE_STOP_TIMEOUT_S = 15.0

_log = structlog.get_logger(__name__)


class ExitCode(IntEnum):
    """How the process ends."""

    OK = 0
    """Told to stop, and stopped."""
    START_FAILED = 1
    """The engine did not come up."""
    BAD_CONFIG = 2
    """The configuration cannot work; a taken port counts."""
    ENGINE_LOST = 3
    """The engine died while serving."""


class SchedulerService:
    """One replica's process. ``run`` is its whole life."""

    def __init__(self, config: SchedulerConfig) -> None:
        self._config = config
        self._service_metrics = ServiceMetrics("scheduler")
        self._metrics = SchedulerMetrics(self._service_metrics, config.replica_id)
        self._tracing = setup_tracing("scheduler", config.telemetry, self._service_metrics.registry)
        self._status = ReplicaStatus()
        self._server = GrpcServer(config.server, [SERVICE_NAME])
        self._servicer = SchedulerServicer(config, self._status, self._metrics)
        self._state_changed = asyncio.Event()
        self._engine: Engine | None = None

    async def run(self) -> ExitCode:
        """Until a signal, or until the engine is lost."""
        signalled = asyncio.create_task(run_until_signal(), name="signals")
        metrics_server = self._metrics_server()
        try:
            await self._bind(metrics_server)
            engine = await self._start_engine(signalled)
            return ExitCode.OK if engine is None else await self._serve(engine, signalled)
        except ConfigError as error:
            _log.error("configuration cannot work", problem=str(error))
            return ExitCode.BAD_CONFIG
        except EngineLostError as error:
            _log.error("the engine did not start", problem=str(error))
            return ExitCode.START_FAILED
        finally:
            signalled.cancel()
            await self._close(metrics_server)

    # -- start -----------------------------------------------------------------------------------------------------

    def _metrics_server(self) -> MetricsServer | None:
        server = self._config.server
        if server.metrics_listen is None:
            return None
        registries = [self._service_metrics.registry, REGISTRY]
        return MetricsServer(server.metrics_listen, registries, allow_plaintext=server.allow_plaintext)

    async def _bind(self, metrics_server: MetricsServer | None) -> None:
        add_to_server(self._servicer, self._server.server)
        await self._server.start()
        if metrics_server is not None:
            metrics_server.start()
        _log.info(
            "bound, starting the engine",
            address=self._server.address,
            metrics=metrics_server.address if metrics_server else None,
            engine=self._config.engine,
        )

    def _address(self) -> str:
        return self._config.advertise or self._server.address

    async def _start_engine(self, signalled: "asyncio.Task[signal.Signals]") -> Engine | None:
        """The engine, ready; None: told to stop before it was."""
        starting = asyncio.create_task(self._bring_up(), name="engine-start")
        await asyncio.wait([starting, signalled], return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            return starting.result()
        starting.cancel()
        await asyncio.wait([starting], timeout=LET_GO_TIMEOUT_S)
        return None

    async def _bring_up(self) -> Engine:
        generation = time.time_ns() // 1_000_000
        # Health checks are answered meanwhile: importing vLLM alone takes seconds.
        self._engine = await in_thread(lambda: build_engine(self._config, self._address(), generation))
        await self._engine.start()
        return self._engine

    # -- serve -----------------------------------------------------------------------------------------------------

    async def _serve(self, engine: Engine, signalled: "asyncio.Task[signal.Signals]") -> ExitCode:
        front = self._open(engine)
        helpers: list[asyncio.Task[object]] = [
            asyncio.create_task(self._follow_state(), name="health"),
            asyncio.create_task(self._watch_stages(), name="stages"),
            asyncio.create_task(watch_engine(engine, self._status), name="engine-watch"),
        ]
        lost: asyncio.Task[object] = asyncio.create_task(self._status.was_lost.wait())
        try:
            await self._server.set_serving(True)
            _log.info("serving", address=self._address(), replica=self._config.replica_id)
            await asyncio.wait([signalled, lost, *helpers], return_when=asyncio.FIRST_COMPLETED)
            if not lost.done() and not signalled.done():
                self._status.lose("a part of the front failed")
            return await self._wind_down(front, lost)
        finally:
            await end_tasks([*helpers, lost])

    def _open(self, engine: Engine) -> Front:
        info = engine.info()
        queue = AdmissionQueue(info.max_running_requests, info.max_waiting_requests)
        limit = self._config.server.max_message_bytes
        front = Front(engine, self._status, queue, self._metrics, self._tracing.tracer, limit)
        watch = self._metrics.watch
        watch("live_requests", "Requests taken on and not ended.", lambda: front.live_requests)
        watch("sessions", "Routers connected.", lambda: self._servicer.sessions)
        watch("running_sequences", "Sequences that the engine computes.", lambda: engine.load().running)
        watch("waiting_sequences", "Sequences that wait in the engine.", lambda: engine.load().waiting)
        watch("free_blocks", "KV blocks that a new request could take.", lambda: engine.load().free_blocks)
        self._servicer.open(front)
        return front

    async def _follow_state(self) -> None:
        """Keeps health and the state metric true."""

        def on_state(state: ReplicaState, reason: str) -> None:
            _log.warning("state changed", state=state.value, reason=reason)
            self._metrics.note_state(state)
            self._state_changed.set()

        self._status.add_listener(on_state)
        while True:
            await self._state_changed.wait()
            self._state_changed.clear()
            await self._server.set_serving(self._status.state is ReplicaState.SERVING)

    async def _watch_stages(self) -> None:
        config = self._config
        addresses = [address for row in config.stages for address in row]
        async with contextlib.AsyncExitStack() as stack:
            channels = [
                (
                    address,
                    await stack.enter_async_context(
                        aio_channel(address, config.stage_tls, allow_plaintext=config.stage_allow_plaintext)
                    ),
                )
                for address in addresses
            ]
            if channels:
                await StageMonitor(channels, self._status, config.stall_after_s).run()
            await asyncio.Event().wait()

    # -- stop ------------------------------------------------------------------------------------------------------

    async def _wind_down(self, front: Front, lost: "asyncio.Task[object]") -> ExitCode:
        """Finishes what can be finished, and gives the rest its end."""
        if not self._status.was_lost.is_set():
            self._status.drain("the replica stops")
            await self._server.set_serving(False)
            idle = asyncio.create_task(front.wait_idle())
            timeout_s = self._config.server.drain_timeout_s
            await asyncio.wait([idle, lost], timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            idle.cancel()
        await front.abandon_all(self._status.reason, LET_GO_TIMEOUT_S)
        return ExitCode.ENGINE_LOST if self._status.was_lost.is_set() else ExitCode.OK

    async def _close(self, metrics_server: MetricsServer | None) -> None:
        await self._servicer.close_sessions(FLUSH_TIMEOUT_S)
        await self._server.stop()
        if self._engine is not None:
            try:
                async with asyncio.timeout(ENGINE_STOP_TIMEOUT_S):
                    await self._engine.stop()
            except TimeoutError:
                _log.error("the engine did not stop in time", after_s=ENGINE_STOP_TIMEOUT_S)
        if metrics_server is not None:
            metrics_server.stop()
        self._tracing.shutdown()
        _log.info("stopped")
