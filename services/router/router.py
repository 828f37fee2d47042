"""The router process from bind to exit.

Start: ledger read once (bounded) -> sessions dialled -> gRPC bound, health NOT_SERVING -> tokenizer loaded in the
background, HTTP bound -> health SERVING as soon as a replica serves. Stop: NOT_SERVING -> new requests refused ->
those in flight finish (bounded) -> edges closed -> sessions, ledger and traces closed.
"""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from enum import IntEnum
from functools import partial

import grpc.aio
import structlog
from forerun.inference.v1 import service_pb2_grpc as pb_grpc
from prometheus_client import REGISTRY

from services.common.errors import ConfigError
from services.common.ledger import LedgerView, ViewMetrics
from services.common.metrics import MetricsServer
from services.common.rpc import aio_channel
from services.common.server import run_until_signal
from services.common.tracing import setup_tracing
from services.common.types import ReplicaState
from services.router.admission import Admission
from services.router.apex.expert_router import ExpertRouter
from services.router.apex.route_net import load_route_net
from services.router.api_keys import load_api_keys
from services.router.change_signal import ChangeSignal
from services.router.config import RouterConfig
from services.router.expert_chooser import ExpertChooser
from services.router.generate import Deadlines, GenerateCall
from services.router.grpc_edge import ApiKeyInterceptor, RouterServer
from services.router.metrics import RouterMetrics
from services.router.model_edge import ModelEdge
from services.router.placement import Placement, PlacementOptions
from services.router.replica_pool import ReplicaPool
from services.router.reservations import Reservations
from services.router.servicer import SERVICE_NAME, InferenceServicer, list_replicas

CLOSE_TIMEOUT_S = 5.0

_log = structlog.get_logger(__name__)


class ExitCode(IntEnum):
    """How the process ends."""

    OK = 0
    """Told to stop, and stopped."""
    FAILED = 1
    """A part of it failed: the model's tokenizer did not load, or a bug."""
    BAD_CONFIG = 2
    """The configuration cannot work; a taken port counts."""


class Router:
    """One router. ``run`` is its whole life."""

    def __init__(self, config: RouterConfig) -> None:
        """Raises ``ConfigError``."""
        self._config = config
        self._metrics = RouterMetrics()
        self._tracing = setup_tracing("router", config.telemetry, self._metrics.registry)
        self._keys = load_api_keys([key.get_secret_value() for key in config.api_keys], config.api_key_file)
        self._ledger = LedgerView(config.ledger, ViewMetrics(self._metrics.registry)) if config.ledger.enabled else None
        self._changed = ChangeSignal()
        self._pool = self._build_pool()
        self._reservations = Reservations(self._ledger)
        self._admission = Admission(config.max_concurrent_requests, config.retry_after_ms)
        self._model_edge = ModelEdge(
            config,
            self._keys,
            self._pool,
            self._changed,
            self._metrics,
            partial(list_replicas, self._pool, self._ledger),
        )
        self._call = self._build_call()
        self._server = RouterServer(
            config.server, [SERVICE_NAME], [ApiKeyInterceptor(SERVICE_NAME, self._keys, self._metrics)]
        )
        self._metrics_server = self._build_metrics_server()

    async def run(self) -> ExitCode:
        """Until a signal, or until a part fails for good."""
        signalled = asyncio.create_task(run_until_signal(), name="signals")
        helpers: list[asyncio.Task[None]] = []
        try:
            await self._start()
            helpers = [
                asyncio.create_task(self._model_edge.run(self._call, self._admission), name="model-edge"),
                asyncio.create_task(self._follow_replicas(), name="health"),
            ]
            return await self._wait_for_end(signalled, helpers)
        except ConfigError as error:
            _log.error("configuration cannot work", problem=str(error))
            return ExitCode.BAD_CONFIG
        finally:
            signalled.cancel()
            await self._stop(helpers)

    # -- build -----------------------------------------------------------------------------------------------------

    def _build_pool(self) -> ReplicaPool:
        config, ledger = self._config, self._ledger

        def open_channel(address: str) -> grpc.aio.Channel:
            return aio_channel(
                address,
                config.replica_tls,
                max_message_bytes=config.server.max_message_bytes,
                allow_plaintext=config.replica_allow_plaintext,
            )

        configured = {replica.replica_id: replica.address for replica in config.replicas}
        live = (lambda: ledger.replicas) if config.discover and ledger is not None else None
        return ReplicaPool(configured, config.router_id, open_channel, self._changed, live)

    def _build_call(self) -> GenerateCall:
        config, tracer = self._config, self._tracing.tracer
        options = PlacementOptions(config.expected_output_tokens, config.retry_after_ms, config.prefix_weight)
        return GenerateCall(
            pool=self._pool,
            placement=Placement(
                self._pool, self._ledger, self._reservations, self._build_expert_chooser(), options, tracer
            ),
            reservations=self._reservations,
            admission=self._admission,
            renderer=lambda: self._model_edge.renderer,
            deadlines=Deadlines(config.default_timeout_s, config.max_timeout_s),
            metrics=self._metrics,
            tracer=tracer,
        )

    def _build_expert_chooser(self) -> ExpertChooser:
        config = self._config.experts
        if config is None:
            return ExpertChooser(ExpertRouter(None), self._metrics)
        try:
            net = load_route_net(config.model)
        except ConfigError as error:
            # Requests are as right without it, and only a little slower.
            _log.error("no route model; replicas choose who drafts", problem=str(error))
            net = None
        return ExpertChooser(ExpertRouter(net, config.profile, config.first_block_only), self._metrics)

    def _build_metrics_server(self) -> MetricsServer | None:
        server = self._config.server
        if server.metrics_listen is None:
            return None
        # vLLM's HTTP app counts in prometheus_client's own registry.
        registries = [self._metrics.registry, REGISTRY]
        return MetricsServer(server.metrics_listen, registries, allow_plaintext=server.allow_plaintext)

    # -- run -------------------------------------------------------------------------------------------------------

    async def _start(self) -> None:
        if self._ledger is not None:
            await self._ledger.start()
        await self._reservations.start()
        pb_grpc.add_InferenceServiceServicer_to_server(
            InferenceServicer(self._call, self._pool, self._ledger, self._metrics, self._keys), self._server.server
        )
        self._model_edge.bind()
        await self._server.start()
        await self._server.set_serving(False)
        if self._metrics_server is not None:
            self._metrics_server.start()
        await self._pool.start()
        _log.info(
            "bound",
            grpc=self._server.address,
            http=self._model_edge.address,
            metrics=self._metrics_server.address if self._metrics_server else None,
            router_id=self._config.router_id,
        )

    async def _wait_for_end(
        self, signalled: "asyncio.Task[signal.Signals]", helpers: list[asyncio.Task[None]]
    ) -> ExitCode:
        await asyncio.wait([signalled, *helpers], return_when=asyncio.FIRST_COMPLETED)
        if signalled.done():
            return ExitCode.OK
        for helper in helpers:
            if helper.done() and isinstance(error := helper.exception(), ConfigError):
                raise error
            if helper.done():
                _log.error("a part of the router failed", part=helper.get_name(), exc_info=helper.exception())
        return ExitCode.FAILED

    async def _follow_replicas(self) -> None:
        """Health and the replica gauges follow the replicas; all else that must be ready is ready before."""
        while True:
            version = self._changed.version
            for state in ReplicaState:
                count = sum(session.state is state for session in self._pool.sessions.values())
                self._metrics.replicas.labels(state.value).set(count)
            ready = self._pool.is_serving and self._model_edge.is_ready
            await self._server.set_serving(ready, SERVICE_NAME)
            await self._changed.wait_past(version)

    # -- stop ------------------------------------------------------------------------------------------------------

    async def _stop(self, helpers: list[asyncio.Task[None]]) -> None:
        self._admission.close()
        health = [task for task in helpers if task.get_name() == "health"]
        await _cancel(health)
        await self._server.stop(self._drain)
        await _cancel(helpers)
        await self._bounded("sessions", self._pool.close)
        await self._bounded("reservations", self._reservations.close)
        if self._ledger is not None:
            await self._bounded("ledger", self._ledger.close)
        if self._metrics_server is not None:
            self._metrics_server.stop()
        await asyncio.to_thread(self._tracing.shutdown)
        _log.info("stopped")

    async def _drain(self) -> None:
        """Requests in flight finish, whichever edge they came by; what is left when time is up is told so."""
        try:
            await self._admission.wait_idle()
        finally:
            await self._pool.close()
            await self._model_edge.stop()

    async def _bounded(self, part: str, close: Callable[[], Awaitable[None]]) -> None:
        try:
            await asyncio.wait_for(close(), CLOSE_TIMEOUT_S)
        except TimeoutError:
            _log.error("did not close in time", part=part, after_s=CLOSE_TIMEOUT_S)


async def _cancel(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
