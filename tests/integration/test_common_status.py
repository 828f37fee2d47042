"""Whatever a servicer raises, and whatever a client sends, ends in one clear status; over a real connection."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
import pytest
import structlog
from forerun.inference.v1 import service_pb2, service_pb2_grpc
from forerun.scheduler.v1 import service_pb2 as scheduler_pb2
from forerun.scheduler.v1 import service_pb2_grpc as scheduler_grpc
from forerun.stage.v1 import service_pb2 as stage_pb2
from forerun.stage.v1 import service_pb2_grpc as stage_grpc

from services.common.config import ServerConfig
from services.common.outcome import Outcome
from services.common.rpc import aio_channel
from services.common.server import GrpcServer
from services.common.status import error_from_status
from tests.support.probe_service import SECRET, ProbeInference, probe_server
from tests.support.waiting import eventually

MEBIBYTE = 2**20


@pytest.fixture
async def probe() -> AsyncIterator[tuple[GrpcServer, ProbeInference]]:
    async with probe_server() as server_and_servicer:
        yield server_and_servicer


@pytest.fixture
async def channel(probe: tuple[GrpcServer, ProbeInference]) -> AsyncIterator[grpc.aio.Channel]:
    async with aio_channel(probe[0].address) as opened:
        yield opened


async def call(kind: str, channel: grpc.aio.Channel, behaviour: str) -> None:
    """One call of each of the four shapes, read to its end."""
    metadata = (("behaviour", behaviour),)
    match kind:
        case "unary-unary":
            await service_pb2_grpc.InferenceServiceStub(channel).GetModelInfo(
                service_pb2.GetModelInfoRequest(), metadata=metadata
            )
        case "unary-stream":
            request = service_pb2.GenerateRequest(model=behaviour)
            async for _ in service_pb2_grpc.InferenceServiceStub(channel).Generate(request):
                pass
        case "stream-unary":
            requests = iter([stage_pb2.PushActivationsRequest()])
            await stage_grpc.StageServiceStub(channel).PushActivations(requests, metadata=metadata)
        case "stream-stream":
            hello = scheduler_pb2.SessionRequest(hello=scheduler_pb2.Hello(router_id=behaviour))
            async for _ in scheduler_grpc.SchedulerServiceStub(channel).Session(iter([hello])):
                pass


KINDS = ["unary-unary", "unary-stream", "stream-unary", "stream-stream"]


async def failure(kind: str, channel: grpc.aio.Channel, behaviour: str) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await asyncio.wait_for(call(kind, channel, behaviour), 10)
    return caught.value


@pytest.mark.parametrize("kind", KINDS)
async def test_a_call_that_raises_nothing_passes(channel: grpc.aio.Channel, kind: str) -> None:
    await asyncio.wait_for(call(kind, channel, "fine"), 10)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("behaviour", "code", "details", "metadata"),
    [
        (
            "invalid",
            grpc.StatusCode.INVALID_ARGUMENT,
            "model: no such model, é; known: a, b",
            {"forerun-outcome": "rejected-invalid", "forerun-field": "model"},
        ),
        (
            "not-found",
            grpc.StatusCode.NOT_FOUND,
            "model: unknown",
            {"forerun-outcome": "rejected-invalid", "forerun-field": "model"},
        ),
        (
            "overloaded",
            grpc.StatusCode.RESOURCE_EXHAUSTED,
            "queue full: 8 of 8",
            {"forerun-outcome": "rejected-overload", "forerun-retry-after-ms": "250"},
        ),
        ("lost", grpc.StatusCode.ABORTED, "replica r1 died", {"forerun-outcome": "replica-lost"}),
        ("abort", grpc.StatusCode.FAILED_PRECONDITION, "own abort", {}),
    ],
)
async def test_errors_map_to_statuses(
    channel: grpc.aio.Channel, kind: str, behaviour: str, code: grpc.StatusCode, details: str, metadata: dict[str, str]
) -> None:
    error = await failure(kind, channel, behaviour)
    assert (error.code(), error.details()) == (code, details)
    assert dict(error.trailing_metadata()) == metadata


@pytest.mark.parametrize("kind", KINDS)
async def test_bugs_end_as_internal_and_leak_nothing(channel: grpc.aio.Channel, kind: str) -> None:
    with structlog.testing.capture_logs() as logs:
        error = await failure(kind, channel, "bug")
    assert error.code() is grpc.StatusCode.INTERNAL
    assert SECRET not in (error.details() or "")
    assert dict(error.trailing_metadata()) == {"forerun-outcome": "internal"}
    (line,) = [line for line in logs if line["event"] == "call failed"]
    assert isinstance(line["exc_info"], KeyError)
    assert line["method"].startswith("/forerun.")


async def test_a_client_rebuilds_the_error(channel: grpc.aio.Channel) -> None:
    error = await failure("unary-stream", channel, "overloaded")
    rebuilt = error_from_status(error.code(), error.details(), error.trailing_metadata())
    assert (rebuilt.outcome, rebuilt.message, rebuilt.retry_after_ms) == (
        Outcome.REJECTED_OVERLOAD,
        "queue full: 8 of 8",
        250,
    )


BAD_TEXT = b"\x0a\x04\xff\xfe\xfd\xfc"
"""Field 1, four bytes that are no UTF-8."""


@pytest.mark.parametrize(
    ("kind", "content"),
    [(kind, content) for kind in KINDS for content in (b"\x0a\x7f", b"\xff\xff\xff")]
    + [("unary-stream", BAD_TEXT), ("stream-stream", b"\x0a\x06" + BAD_TEXT)],
)
async def test_unreadable_messages_are_invalid_arguments(channel: grpc.aio.Channel, kind: str, content: bytes) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await asyncio.wait_for(raw_call(channel, kind, content), 10)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    metadata = dict(caught.value.trailing_metadata())
    assert metadata == {"forerun-outcome": "rejected-invalid", "forerun-field": "message"}


async def raw_call(channel: grpc.aio.Channel, kind: str, content: bytes) -> None:
    """One call whose one request is ``content``, whatever that is."""
    match kind:
        case "unary-unary":
            await channel.unary_unary("/forerun.inference.v1.InferenceService/GetModelInfo")(content)
        case "unary-stream":
            async for _ in channel.unary_stream("/forerun.inference.v1.InferenceService/Generate")(content):
                pass
        case "stream-unary":
            await channel.stream_unary("/forerun.stage.v1.StageService/PushActivations")(iter([content]))
        case "stream-stream":
            async for _ in channel.stream_stream("/forerun.scheduler.v1.SchedulerService/Session")(iter([content])):
                pass


async def test_a_message_over_the_limit_is_named_and_the_connection_survives(channel: grpc.aio.Channel) -> None:
    stub = service_pb2_grpc.InferenceServiceStub(channel)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for _ in stub.Generate(service_pb2.GenerateRequest(text="x" * 20 * MEBIBYTE)):
            pass
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert caught.value.details() == ("message: 20971525 bytes, at most 16777216 (max_message_bytes) are taken")
    assert dict(caught.value.trailing_metadata())["forerun-field"] == "message"
    await call("unary-unary", channel, "fine")


async def test_grpc_itself_cuts_off_what_is_far_over_the_limit() -> None:
    """Beyond four times the limit nothing is buffered; gRPC's own answer is RESOURCE_EXHAUSTED."""
    limit = 64 * 1024
    unbounded = [("grpc.max_send_message_length", -1)]
    async with (
        probe_server(ServerConfig(max_message_bytes=limit)) as (server, _),
        grpc.aio.insecure_channel(server.address, options=unbounded) as channel,
    ):
        stub = service_pb2_grpc.InferenceServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for _ in stub.Generate(service_pb2.GenerateRequest(text="x" * 5 * limit)):
                pass
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        await call("unary-unary", channel, "fine")


async def test_large_responses_pass_up_to_the_limit(channel: grpc.aio.Channel) -> None:
    """gRPC's own limit for received messages is 4 MiB; a prompt's log probabilities are easily more."""
    await call("unary-stream", channel, f"bytes:{15 * MEBIBYTE}")
    with structlog.testing.capture_logs() as logs:
        error = await failure("unary-stream", channel, f"bytes:{17 * MEBIBYTE}")
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert [line["event"] for line in logs] == ["call failed"]
    await call("unary-unary", channel, "fine")


async def test_calls_over_the_limit_are_refused_at_once() -> None:
    async with (
        probe_server(ServerConfig(max_concurrent_rpcs=2)) as (server, inference),
        aio_channel(server.address) as channel,
    ):
        stub = service_pb2_grpc.InferenceServiceStub(channel)
        hanging: list[Any] = [stub.Generate(service_pb2.GenerateRequest(model="hang")) for _ in range(2)]
        for stream in hanging:
            await stream.read()
        error = await failure("unary-stream", channel, "fine")
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        for stream in hanging:
            stream.cancel()
        await eventually(lambda: inference.open_streams == 0)
        await call("unary-stream", channel, "fine")


@pytest.mark.parametrize("behaviour", ["hang", "flood"])
async def test_a_cancelled_calls_generator_is_closed_at_once(
    probe: tuple[GrpcServer, ProbeInference], channel: grpc.aio.Channel, behaviour: str
) -> None:
    stream: Any = service_pb2_grpc.InferenceServiceStub(channel).Generate(service_pb2.GenerateRequest(model=behaviour))
    await stream.read()
    # The flood is not read, so the server waits for flow control inside a write.
    await asyncio.sleep(0.3)
    assert probe[1].open_streams == 1
    stream.cancel()
    await eventually(lambda: probe[1].open_streams == 0)


@pytest.mark.parametrize("behaviour", ["hang", "flood"])
async def test_a_call_past_its_deadline_is_closed_and_says_so(
    probe: tuple[GrpcServer, ProbeInference], channel: grpc.aio.Channel, behaviour: str
) -> None:
    stub = service_pb2_grpc.InferenceServiceStub(channel)
    stream: Any = stub.Generate(service_pb2.GenerateRequest(model=behaviour), timeout=0.5)
    await stream.read()
    await asyncio.sleep(0.6)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        while await stream.read() is not grpc.aio.EOF:
            pass
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await eventually(lambda: probe[1].open_streams == 0)


async def test_clients_that_leave_at_any_moment_are_no_failures(
    probe: tuple[GrpcServer, ProbeInference], channel: grpc.aio.Channel
) -> None:
    stub = service_pb2_grpc.InferenceServiceStub(channel)

    async def leave(after_reads: int) -> None:
        stream: Any = stub.Generate(service_pb2.GenerateRequest(model="flood"))
        for _ in range(after_reads):
            await stream.read()
        stream.cancel()

    with structlog.testing.capture_logs() as logs:
        await asyncio.gather(*(leave(number * 7) for number in range(40)))
        await eventually(lambda: probe[1].open_streams == 0)
        await call("unary-unary", channel, "fine")
    assert logs == []
