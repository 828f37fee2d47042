"""A scheduler process with the fake engine, spoken to as routers do."""

import asyncio
from collections.abc import Iterator

import grpc
import grpc.aio
import pytest
from forerun.inference.v1 import service_pb2 as inference_pb2
from forerun.scheduler.v1 import service_pb2, service_pb2_grpc

from services.common.outcome import Outcome
from tests.support.scheduler_process import SchedulerProcess
from tests.support.session_client import SessionClient, outcome
from tests.support.waiting import eventually

BLOCKS = 1024


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SchedulerProcess]:
    process = SchedulerProcess(
        tmp_path_factory.mktemp("scheduler"),
        max_queued_requests=16,
        fake={"step_time_s": 0.005, "max_num_seqs": 8, "total_blocks": BLOCKS, "vocab_size": 49152},
    )
    yield process.start()
    process.end()


async def replica_info(session: SessionClient) -> service_pb2.GetReplicaInfoResponse:
    return await session.stub.GetReplicaInfo(service_pb2.GetReplicaInfoRequest(), timeout=5)


async def wait_until_idle(session: SessionClient) -> None:
    async with asyncio.timeout(5):
        info = await replica_info(session)
        while info.running_requests or info.waiting_requests:
            await asyncio.sleep(0.01)
            info = await replica_info(session)


async def test_a_request_streams_deltas_and_ends_once(scheduler: SchedulerProcess) -> None:
    async with SessionClient(scheduler.address) as session:
        assert session.welcome is not None
        assert session.welcome.replica.total_blocks == BLOCKS
        await session.submit("a", max_tokens=20, ignore_eos=True)
        finished = await session.finished("a")
        assert outcome(finished) is Outcome.LENGTH
        assert len(session.token_ids("a")) == finished.usage.output_tokens == 20
        assert session.text("a")
        assert finished.usage.prompt_tokens == 3
        assert finished.usage.HasField("queue_seconds")
        await asyncio.sleep(0.1)
        assert len(session.finishes("a")) == 1


async def test_one_step_of_all_requests_is_one_message(scheduler: SchedulerProcess) -> None:
    async with SessionClient(scheduler.address) as session:
        for number in range(8):
            await session.submit(f"r{number}", prompt=[number + 1], max_tokens=50, ignore_eos=True)
        for number in range(8):
            await session.finished(f"r{number}")
        # 8 × 50 tokens in about 50 messages; submits that arrive over several steps cost a few more.
        assert len(session.batch_sizes) < 75
        assert max(session.batch_sizes) >= 8


async def test_choices_logprobs_and_final_only(scheduler: SchedulerProcess) -> None:
    async with SessionClient(scheduler.address) as session:
        await session.submit("n", n=3, seed=7, max_tokens=9, ignore_eos=True, logprobs=2, prompt_logprobs=1)
        await session.submit("whole", final_only=True, max_tokens=9, ignore_eos=True)
        finished = await session.finished("n")
        assert [choice.index for choice in finished.choices] == [0, 1, 2]
        assert len({tuple(session.token_ids("n", index)) for index in range(3)}) == 3
        first = next(event.delta for event in session.events["n"] if event.HasField("delta"))
        assert len(first.logprobs[0].candidates) == 3
        prompt = next(event.prompt_logprobs for event in session.events["n"] if event.HasField("prompt_logprobs"))
        assert [len(position.candidates) for position in prompt.positions] == [0, 2, 2]
        await session.finished("whole")
        assert len(session.events["whole"]) == 2


async def test_same_seed_same_text(scheduler: SchedulerProcess) -> None:
    async with SessionClient(scheduler.address) as session:
        for name, seed in (("a", 1), ("b", 1), ("c", 2)):
            await session.submit(name, temperature=1.0, seed=seed, max_tokens=16, ignore_eos=True)
            await session.finished(name)
        assert session.token_ids("a") == session.token_ids("b") != session.token_ids("c")


@pytest.mark.parametrize(
    ("prompt", "sampling", "field"),
    [
        ([], {}, "prompt"),
        ([49152], {}, "prompt"),
        ([1] * 8192, {}, "prompt"),
        ([1], {"max_tokens": 0}, "sampling.max_tokens"),
        ([1], {"temperature": float("nan")}, "sampling.temperature"),
        ([1], {"temperature": -1.0}, "sampling.temperature"),
        ([1], {"structured_output": {"json_schema": "{not json"}}, "sampling.structured_output.json_schema"),
        ([1], {"structured_output": {}}, "sampling.structured_output"),
    ],
)
async def test_bad_input_names_its_field_and_harms_nobody(
    scheduler: SchedulerProcess, prompt: list[int], sampling: dict[str, object], field: str
) -> None:
    async with SessionClient(scheduler.address) as session:
        await session.submit("good", max_tokens=30, ignore_eos=True)
        await session.submit("bad", prompt, **sampling)
        refused = await session.finished("bad")
        assert outcome(refused) is Outcome.REJECTED_INVALID
        assert refused.invalid_field == field
        assert outcome(await session.finished("good")) is Outcome.LENGTH


async def test_a_request_id_in_flight_is_refused_again_and_free_after_its_end(scheduler: SchedulerProcess) -> None:
    async with SessionClient(scheduler.address) as session:
        await session.submit("twin", max_tokens=30, ignore_eos=True)
        await session.first_delta("twin")
        await session.submit("twin", max_tokens=30, ignore_eos=True)
        await eventually(lambda: len(session.finishes("twin")) == 2)
        refused, served = session.finishes("twin")
        assert outcome(refused) is Outcome.REJECTED_INVALID
        assert refused.invalid_field == "request_id"
        assert outcome(served) is Outcome.LENGTH
        assert len(session.token_ids("twin")) == 30
        await session.submit("twin", max_tokens=5, ignore_eos=True)
        await eventually(lambda: len(session.finishes("twin")) == 3)
        assert outcome(session.finishes("twin")[2]) is Outcome.LENGTH


async def test_two_routers_may_use_the_same_request_id(scheduler: SchedulerProcess) -> None:
    async with SessionClient(scheduler.address, "one") as one, SessionClient(scheduler.address, "two") as two:
        await one.submit("same", max_tokens=200, ignore_eos=True)
        await one.first_delta("same")
        await two.submit("same", max_tokens=10, ignore_eos=True)
        assert outcome(await two.finished("same")) is Outcome.LENGTH
        await two.cancel("same")
        assert outcome(await one.finished("same")) is Outcome.LENGTH
        assert len(one.token_ids("same")) == 200


async def test_cancel_running_queued_and_unknown(scheduler: SchedulerProcess) -> None:
    async with SessionClient(scheduler.address) as session:
        for number in range(9):
            await session.submit(f"r{number}", max_tokens=8000, ignore_eos=True)
        await session.first_delta("r7")
        await session.cancel("r8")
        queued = await session.finished("r8")
        assert outcome(queued) is Outcome.CANCELLED
        assert queued.usage.output_tokens == 0
        await session.cancel("never-was")
        for number in range(8):
            await session.cancel(f"r{number}")
            await session.cancel(f"r{number}")
        for number in range(8):
            assert outcome(await session.finished(f"r{number}")) is Outcome.CANCELLED
        await wait_until_idle(session)
        assert all(len(session.finishes(f"r{number}")) == 1 for number in range(9))


async def test_deadlines_running_and_queued(scheduler: SchedulerProcess) -> None:
    async with SessionClient(scheduler.address) as session:
        for number in range(8):
            await session.submit(f"r{number}", max_tokens=8000, ignore_eos=True, timeout_ms=400)
        await session.submit("queued", timeout_ms=100)
        await session.submit("past", timeout_ms=0)
        assert outcome(await session.finished("past")) is Outcome.DEADLINE
        assert outcome(await session.finished("queued")) is Outcome.DEADLINE
        for number in range(8):
            finished = await session.finished(f"r{number}", 2.0)
            assert outcome(finished) is Outcome.DEADLINE
            assert finished.usage.output_tokens == len(session.token_ids(f"r{number}")) > 0
        await wait_until_idle(session)


async def test_overload_is_refused_at_once_with_a_hint(scheduler: SchedulerProcess) -> None:
    async with SessionClient(scheduler.address) as session:
        for number in range(300):
            await session.submit(f"r{number}", max_tokens=20, ignore_eos=True)
        finishes = [await session.finished(f"r{number}", 20) for number in range(300)]
        refused = [finished for finished in finishes if outcome(finished) is Outcome.REJECTED_OVERLOAD]
        served = [finished for finished in finishes if outcome(finished) is Outcome.LENGTH]
        assert len(refused) + len(served) == 300
        assert len(served) >= 24
        assert all(100 <= finished.retry_after_ms <= 10_000 for finished in refused)
        await wait_until_idle(session)
        await session.submit("after", max_tokens=5, ignore_eos=True)
        assert outcome(await session.finished("after")) is Outcome.LENGTH


async def test_a_broken_session_frees_everything(scheduler: SchedulerProcess) -> None:
    async with SessionClient(scheduler.address) as observer:
        async with SessionClient(scheduler.address, "leaver") as session:
            for number in range(12):
                await session.submit(f"r{number}", max_tokens=8000, ignore_eos=True)
            await session.first_delta("r7")  # the last of those that run at once
            assert (await replica_info(observer)).running_requests == 8
        await wait_until_idle(observer)


async def test_hello_comes_first_and_speaks_our_version(scheduler: SchedulerProcess) -> None:
    async def code_of(*requests: service_pb2.SessionRequest) -> grpc.StatusCode:
        async with grpc.aio.insecure_channel(scheduler.address) as channel:
            call = service_pb2_grpc.SchedulerServiceStub(channel).Session(iter(requests), timeout=5)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                async for _ in call:
                    pass
            return caught.value.code()

    hello = service_pb2.Hello(router_id="r", protocol_version=1)
    submit = service_pb2.SessionRequest(submit=service_pb2.Submit(request_id="x"))
    assert await code_of(submit) is grpc.StatusCode.INVALID_ARGUMENT
    assert await code_of() is grpc.StatusCode.INVALID_ARGUMENT
    newer = service_pb2.Hello(router_id="r", protocol_version=99)
    assert await code_of(service_pb2.SessionRequest(hello=newer)) is grpc.StatusCode.FAILED_PRECONDITION
    unnamed = service_pb2.Hello(router_id="no spaces", protocol_version=1)
    assert await code_of(service_pb2.SessionRequest(hello=unnamed)) is grpc.StatusCode.INVALID_ARGUMENT
    twice = service_pb2.SessionRequest(hello=hello)
    assert await code_of(twice, twice) is grpc.StatusCode.INVALID_ARGUMENT


async def test_state_is_serving(scheduler: SchedulerProcess) -> None:
    async with SessionClient(scheduler.address) as session:
        assert (await replica_info(session)).state == inference_pb2.REPLICA_STATE_SERVING
    assert scheduler.is_serving()
