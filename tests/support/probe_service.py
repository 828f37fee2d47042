"""Servicers with one behaviour per request, for tests of the server around them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import grpc.aio
from forerun.inference.v1 import generation_pb2, service_pb2, service_pb2_grpc
from forerun.scheduler.v1 import service_pb2 as scheduler_pb2
from forerun.scheduler.v1 import service_pb2_grpc as scheduler_grpc
from forerun.stage.v1 import service_pb2 as stage_pb2
from forerun.stage.v1 import service_pb2_grpc as stage_grpc

from services.common.config import ServerConfig
from services.common.errors import RequestEndedError, invalid, overloaded
from services.common.outcome import Outcome
from services.common.server import GrpcServer

INFERENCE = "forerun.inference.v1.InferenceService"
SCHEDULER = "forerun.scheduler.v1.SchedulerService"
STAGE = "forerun.stage.v1.StageService"

SECRET = "the secret of the house"


async def behave(name: str, context: Any) -> None:
    """Raises what the name asks for; returns for any other name."""
    match name:
        case "invalid":
            raise invalid("model", "no such model, é; known: a, b")
        case "not-found":
            raise RequestEndedError(Outcome.REJECTED_INVALID, "model: unknown", field="model", not_found=True)
        case "overloaded":
            raise overloaded("queue full: 8 of 8", 250)
        case "lost":
            raise RequestEndedError(Outcome.REPLICA_LOST, "replica r1 died")
        case "bug":
            raise KeyError(SECRET)
        case "abort":
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "own abort")
        case "hang":
            await asyncio.Event().wait()


class ProbeInference(service_pb2_grpc.InferenceServiceServicer):
    """Unary (GetModelInfo, through ``invocation_metadata``) and server streaming (Generate, through ``model``)."""

    def __init__(self) -> None:
        self.open_streams = 0
        self.hang: Callable[[], Awaitable[object]] = asyncio.Event().wait
        """What a stream for the model "stubborn" waits for."""

    async def GetModelInfo(self, request: Any, context: Any) -> Any:
        behaviour = dict(context.invocation_metadata()).get("behaviour", "")
        await behave(str(behaviour), context)
        return service_pb2.GetModelInfoResponse(dtype="float32")

    async def Generate(self, request: Any, context: Any) -> AsyncIterator[Any]:
        self.open_streams += 1
        try:
            yield service_pb2.GenerateResponse(started=service_pb2.Started(request_id=request.request_id))
            if request.model == "stubborn":
                await self.hang()
            await behave(request.model, context)
            if request.model.startswith("bytes:"):
                text = "x" * int(request.model.removeprefix("bytes:"))
                yield service_pb2.GenerateResponse(delta=generation_pb2.Delta(text=text))
            while request.model == "flood":
                yield service_pb2.GenerateResponse(delta=generation_pb2.Delta(text="x" * 1024))
            yield service_pb2.GenerateResponse(finished=generation_pb2.Finished())
        finally:
            self.open_streams -= 1


class ProbeScheduler(scheduler_grpc.SchedulerServiceServicer):
    """Bidirectional streaming: echoes ids, behaves as ``hello.router_id`` says."""

    async def Session(self, request_iterator: Any, context: Any) -> AsyncIterator[Any]:
        async for request in request_iterator:
            await behave(request.hello.router_id, context)
            event = scheduler_pb2.RequestEvent(request_id=request.submit.request_id)
            yield scheduler_pb2.SessionResponse(events=scheduler_pb2.EventBatch(events=[event]))


class ProbeStage(stage_grpc.StageServiceServicer):
    """Client streaming."""

    async def PushActivations(self, request_iterator: Any, context: Any) -> Any:
        async for _ in request_iterator:
            await behave(str(dict(context.invocation_metadata()).get("behaviour", "")), context)
        return stage_pb2.PushActivationsResponse()


@asynccontextmanager
async def probe_server(config: ServerConfig | None = None) -> AsyncIterator[tuple[GrpcServer, ProbeInference]]:
    """A serving server with the three servicers."""
    server = GrpcServer(config or ServerConfig(), [INFERENCE, SCHEDULER, STAGE])
    inference = ProbeInference()
    service_pb2_grpc.add_InferenceServiceServicer_to_server(inference, server.server)
    scheduler_grpc.add_SchedulerServiceServicer_to_server(ProbeScheduler(), server.server)
    stage_grpc.add_StageServiceServicer_to_server(ProbeStage(), server.server)
    await server.start()
    await server.set_serving(True)
    try:
        yield server, inference
    finally:
        await server.stop()
