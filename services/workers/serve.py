"""A stage worker's life: bind, SERVING, serve one scheduler generation, leave."""

import asyncio
import contextlib
from collections.abc import Coroutine
from functools import partial
from typing import Any

import structlog
from forerun.stage.v1 import service_pb2_grpc

from services.common.logs import setup_logging
from services.common.metrics import MetricsServer, ServiceMetrics
from services.common.server import GrpcServer
from services.common.signals import StopSignal
from services.common.tracing import setup_tracing
from services.workers.config import StageConfig
from services.workers.metrics import StageMetrics
from services.workers.servicer import StageServicer
from services.workers.stage import StageBuilder
from services.workers.synthetic_stage import SyntheticStage
from services.workers.vllm_stage import ModelStage

_SERVICE = "forerun.stage.v1.StageService"

_log = structlog.get_logger(__name__)


async def serve(config: StageConfig) -> int:
    """Serves until a signal comes or the scheduler leaves; the exit code is 0 either way.

    A stage serves one scheduler generation, because torch.distributed and vLLM's model state cannot be taken down
    cleanly inside a process. Whoever started the stage starts it again.
    """
    stop = StopSignal()
    setup_logging("worker", config.telemetry)
    registry = ServiceMetrics("worker").registry
    tracing = setup_tracing("worker", config.telemetry, registry)
    metrics = None
    if config.server.metrics_listen is not None:
        metrics = MetricsServer(config.server.metrics_listen, [registry], allow_plaintext=config.server.allow_plaintext)
        metrics.start()
    servicer = StageServicer(config, StageMetrics(registry), tracing.tracer, _stage_builder(config))
    server = GrpcServer(config.server, [_SERVICE])
    service_pb2_grpc.add_StageServiceServicer_to_server(servicer, server.server)
    try:
        await server.start()
        await server.set_serving(True)
        _log.info("serving", port=server.port)
        await _first(stop.wait(), servicer.finished.wait())
    finally:
        await server.stop()
        await servicer.close()
        if metrics is not None:
            metrics.stop()
        tracing.shutdown()
    return 0


def _stage_builder(config: StageConfig) -> StageBuilder:
    return ModelStage if config.synthetic is None else partial(SyntheticStage, config.synthetic)


async def _first(*coroutines: Coroutine[Any, Any, Any]) -> None:
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
