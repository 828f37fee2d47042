"""The client against real servers that answer as a test tells them: retries only where nobody can see them."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from forerun.inference.v1 import generation_pb2, outcome_pb2
from forerun.inference.v1 import service_pb2 as pb
from forerun.inference.v1 import service_pb2_grpc as pb_grpc

from services.client import ForerunClient, Started
from services.common.config import ServerConfig
from services.common.errors import ConfigError, RequestEndedError, overloaded, unavailable
from services.common.outcome import Outcome
from services.common.server import GrpcServer
from services.common.types import Delta, Finished
from tests.support.free_ports import free_port
from tests.support.router_process import SERVICE

STARTED = pb.GenerateResponse(started=pb.Started(request_id="x", replica_id="r0"))
DELTA = pb.GenerateResponse(delta=generation_pb2.Delta(text="a", token_ids=[1]))
FINISHED = pb.GenerateResponse(finished=generation_pb2.Finished(outcome=outcome_pb2.OUTCOME_STOP))

Step = pb.GenerateResponse | RequestEndedError | float
"""A response, what the call ends with, or seconds to wait."""


class Scripted(pb_grpc.InferenceServiceServicer):
    """Answers the n-th call with the n-th script, further ones with the last."""

    def __init__(self, *scripts: list[Step]) -> None:
        self._scripts = scripts
        self.calls: list[dict[str, Any]] = []
        self.cancelled = asyncio.Event()

    async def Generate(self, request: pb.GenerateRequest, context: Any) -> AsyncIterator[pb.GenerateResponse]:
        script = self._scripts[min(len(self.calls), len(self._scripts) - 1)]
        self.calls.append({**dict(context.invocation_metadata()), "remaining": context.time_remaining()})
        try:
            for step in script:
                if isinstance(step, RequestEndedError):
                    raise step
                if isinstance(step, float):
                    await asyncio.sleep(step)
                else:
                    yield step
        except (asyncio.CancelledError, GeneratorExit):
            self.cancelled.set()
            raise


@asynccontextmanager
async def served(*scripts: list[Step]) -> AsyncIterator[tuple[Scripted, str, Callable[[], Any]]]:
    """The servicer, its address, and what cuts it off."""
    server = GrpcServer(ServerConfig(), [SERVICE])
    servicer = Scripted(*scripts)
    pb_grpc.add_InferenceServiceServicer_to_server(servicer, server.server)
    await server.start()
    try:
        yield servicer, server.address, lambda: server.server.stop(None)
    finally:
        await server.stop()


async def collect(client: ForerunClient, **options: Any) -> list[Any]:
    return [event async for event in client.generate("hi", **options)]


async def ending(client: ForerunClient, **options: Any) -> RequestEndedError:
    with pytest.raises(RequestEndedError) as caught:
        await collect(client, **options)
    return caught.value


async def test_events_in_order() -> None:
    async with served([STARTED, DELTA, DELTA, FINISHED]) as (servicer, address, _), ForerunClient(address) as client:
        events = await collect(client, trace_context=("00-ab-cd-01", "vendor=1"))
    assert [type(event) for event in events] == [Started, Delta, Delta, Finished]
    assert servicer.calls[0]["traceparent"] == "00-ab-cd-01"
    assert servicer.calls[0]["tracestate"] == "vendor=1"


async def test_unavailable_is_retried_until_it_serves() -> None:
    scripts: list[list[Step]] = [[unavailable("not yet", 50)], [unavailable("not yet", 50)], [STARTED, FINISHED]]
    async with served(*scripts) as (servicer, address, _), ForerunClient(address) as client:
        assert len(await collect(client)) == 2
    assert len(servicer.calls) == 3


async def test_retries_end_by_count_and_by_deadline() -> None:
    async with served([unavailable("never", 100)]) as (servicer, address, _):
        async with ForerunClient(address, attempts=2) as client:
            assert (await ending(client)).outcome is Outcome.REJECTED_UNAVAILABLE
        assert len(servicer.calls) == 2
        async with ForerunClient(address, attempts=1000) as client:
            began = time.monotonic()
            error = await ending(client, timeout_s=0.5)
            assert error.outcome in (Outcome.REJECTED_UNAVAILABLE, Outcome.DEADLINE)
            assert time.monotonic() - began < 2


@pytest.mark.parametrize(
    "script",
    [
        [overloaded("full", 10)],
        [RequestEndedError(Outcome.INTERNAL, "bug")],
        [STARTED, unavailable("after the start", 10)],
        [STARTED, DELTA, RequestEndedError(Outcome.REPLICA_LOST, "gone")],
    ],
    ids=["overload", "internal", "unavailable after the start", "replica lost"],
)
async def test_nothing_else_is_retried(script: list[Step]) -> None:
    async with served(script) as (servicer, address, _), ForerunClient(address) as client:
        error = await ending(client)
    assert len(servicer.calls) == 1
    expected = script[-1]
    assert isinstance(expected, RequestEndedError)
    assert (error.outcome, error.message, error.retry_after_ms) == (
        expected.outcome,
        expected.message,
        expected.retry_after_ms,
    )


async def test_a_connection_lost_in_the_answer_is_no_invitation_to_retry() -> None:
    async with served([STARTED, DELTA, 60.0]) as (servicer, address, cut), ForerunClient(address) as client:
        events = client.generate("hi")
        await anext(events)
        await anext(events)
        cutting = asyncio.ensure_future(cut())
        with pytest.raises(RequestEndedError) as caught:
            await asyncio.wait_for(anext(events), 10)
        await cutting
    assert caught.value.outcome in (Outcome.REPLICA_LOST, Outcome.CANCELLED)
    assert len(servicer.calls) == 1


async def test_closing_early_cancels_at_the_server() -> None:
    async with served([STARTED, DELTA, 60.0]) as (servicer, address, _), ForerunClient(address) as client:
        events = client.generate("hi")
        await anext(events)
        await events.aclose()
        await asyncio.wait_for(servicer.cancelled.wait(), 5)


async def test_the_deadline_travels_and_passes() -> None:
    async with served([STARTED, 60.0]) as (servicer, address, _), ForerunClient(address) as client:
        assert (await ending(client, timeout_s=0.4)).outcome is Outcome.DEADLINE
    assert 0 < servicer.calls[0]["remaining"] <= 0.4


async def test_a_stream_without_an_end_is_an_error() -> None:
    async with served([STARTED, DELTA]) as (_, address, _), ForerunClient(address) as client:
        assert (await ending(client)).outcome is Outcome.INTERNAL


async def test_nobody_there() -> None:
    async with ForerunClient(f"127.0.0.1:{free_port()}", attempts=2) as client:
        assert (await ending(client)).outcome is Outcome.REJECTED_UNAVAILABLE
        with pytest.raises(RequestEndedError):
            await client.model_info(timeout_s=1)


async def test_a_key_goes_with_every_call() -> None:
    async with served([STARTED, FINISHED]) as (servicer, address, _), ForerunClient(address, api_key="k") as client:
        await collect(client)
    assert servicer.calls[0]["authorization"] == "Bearer k"


def test_plain_text_to_other_machines_is_refused_unless_asked_for() -> None:
    with pytest.raises(ConfigError, match="tls"):
        ForerunClient("router.test:50051")
