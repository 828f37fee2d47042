"""The gRPC edge over real processes: streams, endings, floods and hostile input."""

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from forerun.inference.v1 import generation_pb2, sampling_pb2
from forerun.inference.v1 import service_pb2 as pb
from forerun.inference.v1 import service_pb2_grpc as pb_grpc

from services.client import ForerunClient, Started
from services.common import trace_names as names
from services.common.outcome import Outcome
from services.common.trace_store import read_trace
from services.common.types import Delta, Finished, SamplingOptions
from tests.support.fleet import FAST, PROMPT, SLOW, Answer, Fleet, endless
from tests.support.router_process import SERVICE, RouterProcess
from tests.support.scheduler_process import SchedulerProcess
from tests.support.waiting import eventually

GENERATE = f"/{SERVICE}/Generate"


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    started = Fleet(tmp_path)
    yield started
    started.end()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[SchedulerProcess, RouterProcess]]:
    """One replica and one router that no test harms."""
    started = Fleet(tmp_path_factory.mktemp("fleet"))
    try:
        scheduler = started.scheduler(fake=FAST, served_model_names=["tiny"], model="/nowhere")
        yield scheduler, started.router({"r0": scheduler})
    finally:
        started.end()


async def load(client: ForerunClient) -> int:
    """Requests that the router has in flight, over all replicas."""
    return sum(replica.in_flight_requests for replica in (await client.list_replicas()).replicas)


async def idle(client: ForerunClient) -> None:
    async with asyncio.timeout(5):
        while await load(client):  # noqa: ASYNC110  (seen from outside)
            await asyncio.sleep(0.02)


async def test_a_stream_from_start_to_finish(shared: tuple[SchedulerProcess, RouterProcess]) -> None:
    async with ForerunClient(shared[1].address) as client:
        events = [event async for event in client.generate(PROMPT, endless(max_tokens=5), request_id="mine")]
    started, *deltas, finished = events
    assert isinstance(started, Started)
    assert (started.request_id, started.replica_id, started.prompt_tokens) == ("mine", "r0", 3)
    assert len(started.trace_id) == 32
    assert all(isinstance(delta, Delta) for delta in deltas)
    assert isinstance(finished, Finished)
    assert (finished.outcome, finished.usage.output_tokens) == (Outcome.LENGTH, 5)


async def test_choices_logprobs_and_whole_answers(shared: tuple[SchedulerProcess, RouterProcess]) -> None:
    async with ForerunClient(shared[1].address) as client:
        several = Answer(client, sampling=endless(max_tokens=4, n=3, logprobs=2, prompt_logprobs=1, seed=1))
        whole = Answer(client, sampling=endless(max_tokens=4), final_only=True)
        assert await several.outcome() is Outcome.LENGTH
        assert await whole.outcome() is Outcome.LENGTH
    assert {event.index for event in several.events if isinstance(event, Delta)} == {0, 1, 2}
    assert all(len(event.logprobs) == len(event.token_ids) for event in several.events if isinstance(event, Delta))
    assert sum(isinstance(event, Delta) for event in whole.events) == 1
    assert len(whole.tokens) == 4


async def test_model_and_replicas(shared: tuple[SchedulerProcess, RouterProcess]) -> None:
    async with ForerunClient(shared[1].address) as client:
        model = await client.model_info()
        replicas = await client.list_replicas()
    assert (model.model_names, model.max_model_len, model.dtype) == (("tiny",), 8192, "fake")
    assert [(one.replica_id, one.state.value) for one in replicas.replicas] == [("r0", "serving")]
    assert not replicas.ledger_reachable


@pytest.mark.parametrize(
    ("prompt", "sampling", "options", "field"),
    [
        ([], SamplingOptions(), {}, "prompt"),
        ([1] * 8192, SamplingOptions(), {}, "prompt"),
        ([49152], SamplingOptions(), {}, "prompt"),
        ([1], SamplingOptions(max_tokens=0), {}, "sampling.max_tokens"),
        ([1], SamplingOptions(temperature=-0.5), {}, "sampling.temperature"),
        ([1], SamplingOptions(temperature=float("nan")), {}, "sampling.temperature"),
        ([1], SamplingOptions(stop=("",)), {}, "sampling.stop"),
        ([1], SamplingOptions(), {"request_id": "no spaces"}, "request_id"),
        ([1], SamplingOptions(), {"request_id": "x" * 129}, "request_id"),
        ("text", SamplingOptions(), {}, "text"),
        ([1], SamplingOptions(), {"model": "unknown"}, "model"),
    ],
    ids=lambda value: str(value)[:24],
)
async def test_bad_input_names_its_field(
    shared: tuple[SchedulerProcess, RouterProcess], prompt: Any, sampling: Any, options: dict[str, Any], field: str
) -> None:
    async with ForerunClient(shared[1].address) as client:
        answer = Answer(client, prompt, sampling, **options)
        assert await answer.outcome(5) is Outcome.REJECTED_INVALID
        assert answer.error is not None
        assert answer.error.field == field
        assert answer.error.not_found is (field == "model")
        # Unharmed: the next one is served.
        assert await Answer(client, sampling=endless(max_tokens=2)).outcome(5) is Outcome.LENGTH


async def raw_status(address: str, content: bytes, **options: Any) -> tuple[grpc.StatusCode, str]:
    """The status that ``content``, whatever it is, ends ``Generate`` in."""
    limits = [("grpc.max_send_message_length", -1)]
    async with grpc.aio.insecure_channel(address, options=limits) as channel:
        call = channel.unary_stream(GENERATE)(content, timeout=10, **options)
        try:
            async for _ in call:
                pass
        except grpc.aio.AioRpcError as error:
            return error.code(), error.details() or ""
    return grpc.StatusCode.OK, ""


VALID = pb.GenerateRequest(tokens=generation_pb2.TokenIds(ids=[1])).SerializeToString()
SAMPLING_WITH_UNKNOWN_FIELD = b"\x32\x03\xf8\x07\x01"
"""Field 6, three bytes: field 127 = 1."""


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\x1a\x02\xff\xfe", "UTF-8"),
        (b"\xff\xff\xff\xff", "protobuf"),
        (VALID + b"\xf8\x07\x01", "field number 127"),
        (VALID + SAMPLING_WITH_UNKNOWN_FIELD, "sampling"),
        (pb.GenerateRequest(text="x" * 20 * 2**20).SerializeToString(), "max_message_bytes"),
        (b"", "prompt"),
    ],
    ids=["invalid UTF-8", "no protobuf", "unknown field", "unknown field within", "20 MB", "empty"],
)
async def test_hostile_messages(shared: tuple[SchedulerProcess, RouterProcess], content: bytes, message: str) -> None:
    code, details = await raw_status(shared[1].address, content)
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    assert message in details
    assert await raw_status(shared[1].address, VALID) == (grpc.StatusCode.OK, "")


async def test_an_id_in_flight_is_refused_and_reusable_after_a_cancel(
    shared: tuple[SchedulerProcess, RouterProcess],
) -> None:
    async with ForerunClient(shared[1].address) as client:
        first = Answer(client, request_id="twin")
        await first.first_output()
        second = Answer(client, request_id="twin")
        assert await second.outcome() is Outcome.REJECTED_INVALID
        assert second.error is not None
        assert second.error.field == "request_id"
        await first.cancel()
        # The id is free when the replica has said that it let go of the first one, a moment after the router has.
        await eventually_free(client, "twin")


async def eventually_free(client: ForerunClient, request_id: str) -> None:
    async with asyncio.timeout(5):
        while True:
            outcome = await Answer(client, sampling=endless(max_tokens=2), request_id=request_id).outcome()
            if outcome is Outcome.LENGTH:
                return
            assert outcome is Outcome.REJECTED_INVALID
            await asyncio.sleep(0.02)


async def test_a_client_that_leaves_frees_the_replica(shared: tuple[SchedulerProcess, RouterProcess]) -> None:
    async with ForerunClient(shared[1].address) as client:
        answers = [Answer(client) for _ in range(6)]
        await asyncio.gather(*(answer.first_output() for answer in answers))
        assert await load(client) == 6
        for answer in answers:
            await answer.cancel()
        await idle(client)


async def test_a_killed_clients_requests_end(shared: tuple[SchedulerProcess, RouterProcess]) -> None:
    code = (
        "import grpc, sys\n"
        "from forerun.inference.v1 import generation_pb2, sampling_pb2, service_pb2 as pb, service_pb2_grpc\n"
        "stub = service_pb2_grpc.InferenceServiceStub(grpc.insecure_channel(sys.argv[1]))\n"
        "sampling = sampling_pb2.SamplingParams(max_tokens=8000, ignore_eos=True)\n"
        "tokens = generation_pb2.TokenIds(ids=[1])\n"
        "for _ in stub.Generate(pb.GenerateRequest(tokens=tokens, sampling=sampling)): print('x', flush=True)\n"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, shared[1].address, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        await asyncio.wait_for(process.stdout.readline(), 20)
        async with ForerunClient(shared[1].address) as client:
            assert await load(client) == 1
            process.kill()
            await idle(client)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def test_deadlines_pass_in_the_queue_and_in_the_answer(fleet: Fleet) -> None:
    scheduler = fleet.scheduler(fake=SLOW | {"max_num_seqs": 1})
    router = fleet.router({"r0": scheduler})
    async with ForerunClient(router.address) as client:
        running = Answer(client, timeout_s=1.0)
        await running.first_output()
        waiting = Answer(client, timeout_s=0.5)
        began = time.monotonic()
        assert await waiting.outcome() is Outcome.DEADLINE
        assert time.monotonic() - began < 1.0
        assert waiting.events == []
        assert await running.outcome() is Outcome.DEADLINE
        assert running.tokens
        await idle(client)
    assert '"outcome": "cancelled"' not in router.log


async def test_the_routers_own_deadline_applies_to_who_brings_none(fleet: Fleet) -> None:
    router = fleet.router({"r0": fleet.scheduler(fake=SLOW)}, default_timeout_s=0.5)
    async with ForerunClient(router.address) as client:
        assert await Answer(client).outcome(3) is Outcome.DEADLINE


async def test_300_streams_on_a_pool_for_8(fleet: Fleet) -> None:
    scheduler = fleet.scheduler(fake=FAST, max_queued_requests=16)
    router = fleet.router({"r0": scheduler}, max_concurrent_requests=40)
    async with ForerunClient(router.address, attempts=1) as client:
        began = time.monotonic()
        answers = [Answer(client, sampling=endless(max_tokens=50)) for _ in range(300)]
        outcomes = Counter([await answer.outcome(30) for answer in answers])
        assert time.monotonic() - began < 20
        assert set(outcomes) == {Outcome.LENGTH, Outcome.REJECTED_OVERLOAD}
        assert outcomes[Outcome.LENGTH] >= 24
        refused = [answer.error for answer in answers if answer.error is not None]
        assert all(error.retry_after_ms for error in refused)
        await idle(client)
        assert await Answer(client, sampling=endless(max_tokens=2)).outcome(5) is Outcome.LENGTH


async def test_a_slow_reader_loses_nothing_and_holds_up_nobody(fleet: Fleet) -> None:
    router = fleet.router({"r0": fleet.scheduler(fake=FAST | {"step_time_s": 0.0005})})
    window = [("grpc.http2.lookahead_bytes", 1024), ("grpc.http2.bdp_probe", 0)]
    async with (
        grpc.aio.insecure_channel(router.address, options=window) as channel,
        ForerunClient(router.address) as client,
    ):
        sampling = sampling_pb2.SamplingParams(max_tokens=4000, ignore_eos=True, temperature=0.0)
        request = pb.GenerateRequest(tokens=generation_pb2.TokenIds(ids=PROMPT), sampling=sampling)
        slow = pb_grpc.InferenceServiceStub(channel).Generate(request)
        first = await slow.read()
        assert isinstance(first, pb.GenerateResponse)
        other = Answer(client, sampling=endless(max_tokens=4000, temperature=0.0))
        assert await other.outcome(60) is Outcome.LENGTH
        tokens, finished = [], None
        while isinstance(response := await slow.read(), pb.GenerateResponse):
            tokens += response.delta.token_ids
            finished = response.finished if response.HasField("finished") else None
        assert finished is not None
        assert tokens == other.tokens
        assert len(tokens) == 4000


async def test_the_replica_learns_whose_a_request_is(fleet: Fleet, tmp_path: Path) -> None:
    traces = tmp_path / "traces"
    telemetry = {"traces_dir": str(traces)}
    scheduler = fleet.scheduler(fake=FAST, telemetry=telemetry)
    router = fleet.router({"r0": scheduler}, api_keys=["hers team-a", "anybody's"], telemetry=telemetry)
    tenants = {}
    for key, stated in (("hers", ""), ("hers", "team-b"), ("anybody's", "team-b"), ("anybody's", "")):
        async with ForerunClient(router.address, api_key=key) as client:
            answer = Answer(client, sampling=endless(max_tokens=2), tenant=stated)
            assert await answer.outcome() is Outcome.LENGTH
            started = answer.events[0]
            assert isinstance(started, Started)
            tenants[key, stated] = started.trace_id
    async with ForerunClient(router.address, api_key="anybody's") as client:
        refused = Answer(client, tenant="team/b")
        assert await refused.outcome() is Outcome.REJECTED_INVALID

    def written() -> dict[tuple[str, str], str | None]:
        spans = {who: read_trace(traces, trace_id) for who, trace_id in tenants.items()}
        return {
            who: span.attributes.get(names.TENANT)
            for who, found in spans.items()
            for span in found
            if span.name == names.SPAN_ADMISSION
        }

    expected = {("hers", ""): "team-a", ("hers", "team-b"): "team-a", ("anybody's", "team-b"): "team-b"}
    await eventually(lambda: written() == expected | {("anybody's", ""): None}, timeout_s=15)


async def test_api_keys(fleet: Fleet) -> None:
    router = fleet.router({"r0": fleet.scheduler(fake=FAST)}, api_keys=["secret", "second"])
    for key in (None, "wrong"):
        async with ForerunClient(router.address, api_key=key) as client:
            answer = Answer(client)
            assert await answer.outcome() is Outcome.REJECTED_INVALID
            assert answer.error is not None
            assert answer.error.field == "authorization"
    assert (await raw_status(router.address, VALID))[0] is grpc.StatusCode.UNAUTHENTICATED
    async with ForerunClient(router.address, api_key="second") as client:
        assert await Answer(client, sampling=endless(max_tokens=2)).outcome() is Outcome.LENGTH
        assert (await client.list_replicas()).replicas
    # Health needs no key: an orchestrator has none.
    await eventually(router.is_serving)
