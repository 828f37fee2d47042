"""A stage without a model: answers every plan at once. Runs in a process of its own, so that it can be killed."""

import asyncio
from collections.abc import AsyncIterator
from multiprocessing.connection import Connection
from typing import Any

import grpc.aio
from forerun.stage.v1 import service_pb2 as pb
from forerun.stage.v1 import service_pb2_grpc


class FakeStage(service_pb2_grpc.StageServiceServicer):
    """Echoes; refuses the fingerprint "wrong"; never answers a call with the arguments ``hang``."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.finished = asyncio.Event()

    async def Configure(self, request: pb.ConfigureRequest, context: Any) -> pb.ConfigureResponse:
        if request.fingerprint == "wrong":
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "fingerprint: differs")
        rendezvous = request.rendezvous_address or "127.0.0.1:4242"
        return pb.ConfigureResponse(device="fake", rendezvous_address=rendezvous)

    async def CallWorker(self, request: pb.CallWorkerRequest, context: Any) -> pb.CallWorkerResponse:
        if request.arguments == b"hang":
            await asyncio.sleep(3600)
        return pb.CallWorkerResponse(result=f"{self.rank}:".encode() + request.arguments)

    async def Execute(
        self, request_iterator: AsyncIterator[pb.ExecuteRequest], context: Any
    ) -> AsyncIterator[pb.ExecuteResponse]:
        try:
            async for plan in request_iterator:
                yield pb.ExecuteResponse(step=plan.step, generation=plan.generation)
        finally:
            self.finished.set()


def serve_fake_stage(ready: Connection, rank: int, port: int = 0) -> None:
    """Serves until the Execute stream ends; sends its port through ``ready``."""
    asyncio.run(_serve(ready, rank, port))


async def _serve(ready: Connection, rank: int, port: int) -> None:
    stage = FakeStage(rank)
    server = grpc.aio.server()
    service_pb2_grpc.add_StageServiceServicer_to_server(stage, server)
    ready.send(server.add_insecure_port(f"127.0.0.1:{port}"))
    await server.start()
    await stage.finished.wait()
    await server.stop(1)
