"""What the gRPC edge needs beside the servicer: the API key check, and health that tells live from ready."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2

from services.common.outcome import Outcome
from services.common.server import GrpcServer
from services.common.status import FIELD_KEY, OUTCOME_KEY
from services.router.api_keys import ApiKeys
from services.router.metrics import RouterMetrics
from services.router.request import Edge


class ApiKeyInterceptor(grpc.aio.ServerInterceptor):
    """Refuses calls of one service with UNAUTHENTICATED unless they bring a key; health and reflection stay open."""

    def __init__(self, service: str, keys: ApiKeys, metrics: RouterMetrics) -> None:
        self._prefix = f"/{service}/"
        self._keys = keys
        self._metrics = metrics

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Lets the call through, or answers in the method's place."""
        if handler_call_details.method.startswith(self._prefix) and not self._allows(handler_call_details):
            self._metrics.refused(Edge.GRPC, Outcome.REJECTED_INVALID)
            return grpc.unary_unary_rpc_method_handler(_refuse)
        return await continuation(handler_call_details)

    def _allows(self, details: grpc.HandlerCallDetails) -> bool:
        values = [value for key, value in details.invocation_metadata or () if key == "authorization"]
        return self._keys.allow(str(values[0]) if len(values) == 1 else "")


class RouterServer(GrpcServer):
    """Overall health ("") says that the process lives, the service's own that a replica serves behind it.

    A router must not be restarted, nor its streams cut, because its replicas are away.
    """

    async def _publish(self, names: Sequence[str]) -> None:
        await super()._publish([name for name in names if name])
        if "" in names:
            stopping = self._stopping is not None
            status = health_pb2.HealthCheckResponse.NOT_SERVING if stopping else health_pb2.HealthCheckResponse.SERVING
            await self._health.set("", status)


async def _refuse(_request: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
    await context.abort(
        grpc.StatusCode.UNAUTHENTICATED,
        "authorization: missing or unknown API key; send metadata authorization: Bearer KEY",
        ((OUTCOME_KEY, Outcome.REJECTED_INVALID.value), (FIELD_KEY, "authorization")),
    )
    return b""
