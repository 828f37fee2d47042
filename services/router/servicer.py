"""The public gRPC API: unpack, one domain call, pack."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

import grpc.aio
from forerun.inference.v1 import service_pb2 as pb
from forerun.inference.v1 import service_pb2_grpc as pb_grpc

from services.common.errors import RequestEndedError
from services.common.ledger import LedgerReplica
from services.common.validation import reject_unknown_fields
from services.router import convert
from services.router.api_keys import ApiKeys
from services.router.generate import GenerateCall
from services.router.metrics import RouterMetrics
from services.router.placement import LedgerReadings
from services.router.replica_pool import ReplicaPool
from services.router.request import Edge, RouterRequest

SERVICE_NAME = pb.DESCRIPTOR.services_by_name["InferenceService"].full_name

Context = grpc.aio.ServicerContext[object, object]


class InferenceServicer(pb_grpc.InferenceServiceServicer):
    """``InferenceService``. Whatever is raised becomes a status in ``services.common.status``."""

    def __init__(
        self,
        call: GenerateCall,
        pool: ReplicaPool,
        readings: LedgerReadings | None,
        metrics: RouterMetrics,
        keys: ApiKeys,
    ) -> None:
        self._call = call
        self._pool = pool
        self._readings = readings
        self._metrics = metrics
        self._keys = keys

    async def Generate(
        self, request: pb.GenerateRequest, context: Context
    ) -> AsyncGenerator[pb.GenerateResponse, None]:
        async with aclosing(self._call.generate(self._unpack(request, context))) as batches:
            async for batch in batches:
                for response in convert.responses_to_proto(batch):
                    yield response

    async def GetModelInfo(self, request: pb.GetModelInfoRequest, context: Context) -> pb.GetModelInfoResponse:
        reject_unknown_fields(request)
        return convert.model_info_to_proto(self._pool.model_names, self._pool.any_info())

    async def ListReplicas(self, request: pb.ListReplicasRequest, context: Context) -> pb.ListReplicasResponse:
        reject_unknown_fields(request)
        return list_replicas(self._pool, self._readings)

    def _unpack(self, request: pb.GenerateRequest, context: Context) -> RouterRequest:
        metadata = {key: value for key, value in context.invocation_metadata() or () if isinstance(value, str)}
        try:
            reject_unknown_fields(request)
            return convert.request_from_proto(
                request,
                timeout_s=context.time_remaining(),
                traceparent=metadata.get("traceparent", ""),
                tracestate=metadata.get("tracestate", ""),
                tenant=self._keys.tenant(metadata.get("authorization", "")) or request.tenant,
            )
        except RequestEndedError as error:
            self._metrics.refused(Edge.GRPC, error.outcome)
            raise


def list_replicas(pool: ReplicaPool, readings: LedgerReadings | None) -> pb.ListReplicasResponse:
    """The replicas behind this router, for both edges."""
    seen: Mapping[str, LedgerReplica] = {} if readings is None else readings.replicas
    return convert.replicas_to_proto(pool.sessions.values(), seen, readings is not None and readings.reachable)
