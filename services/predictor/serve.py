"""The predictor's life: load, bind, SERVING, drain, leave."""

import structlog
from forerun.predictor.v1 import service_pb2_grpc

from services.common.metrics import MetricsServer
from services.common.server import GrpcServer
from services.common.signals import StopSignal
from services.predictor.config import PredictorConfig
from services.predictor.metrics import PredictorMetrics
from services.predictor.registry import ModelRegistry
from services.predictor.servicer import SERVICE_NAME, PredictorServicer

_log = structlog.get_logger(__name__)


async def serve(config: PredictorConfig) -> None:
    """Until a signal comes. Raises ``ConfigError`` for models or addresses that cannot be used."""
    stop = StopSignal()
    registry = ModelRegistry.load(config.models)
    metrics = PredictorMetrics()
    server = GrpcServer(config.server, [SERVICE_NAME])
    service_pb2_grpc.add_PredictorServiceServicer_to_server(
        PredictorServicer(registry, metrics, config.max_rows), server.server
    )
    page = _metrics_server(config, metrics)
    try:
        await server.start()
        if page is not None:
            page.start()
        await server.set_serving(True)
        _log.info("serving", address=server.address, models=[str(folder) for folder in config.models])
        await stop.wait()
    finally:
        await server.stop()
        if page is not None:
            page.stop()


def _metrics_server(config: PredictorConfig, metrics: PredictorMetrics) -> MetricsServer | None:
    server = config.server
    if server.metrics_listen is None:
        return None
    return MetricsServer(server.metrics_listen, [metrics.registry], allow_plaintext=server.allow_plaintext)
