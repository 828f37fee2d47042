"""The scheduler process over the real engine, without stages: what the fake engine cannot prove."""

import json
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from services.common.outcome import Outcome
from tests.support.free_ports import free_port
from tests.support.scheduler_process import SchedulerProcess
from tests.support.session_client import SessionClient, outcome
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(600)

START_S = 400
ANSWER_S = 90

ENGINE_ARGS: dict[str, Any] = {
    "enforce_eager": True,
    "dtype": "float32",
    "max_model_len": 512,
    "max_num_seqs": 4,
    "gpu_memory_utilization": 0.05,
    "kv_cache_memory_bytes": 64 * 2**20,
}

WORDS = '{"type":"object","properties":{"word":{"type":"string","maxLength":12}},"required":["word"]}'


def scheduler_process(folder: Path, model: Path, **config: Any) -> SchedulerProcess:
    return SchedulerProcess(
        folder,
        **config,
        engine="vllm",
        model=str(model),
        served_model_names=["smollm2"],
        max_queued_requests=4,
        engine_args=ENGINE_ARGS,
        server={"listen": f"127.0.0.1:{free_port()}", "metrics_listen": f"127.0.0.1:{free_port()}"},
    )


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory: pytest.TempPathFactory, model_path: Path) -> Iterator[SchedulerProcess]:
    process = scheduler_process(tmp_path_factory.mktemp("vllm-engine"), model_path)
    yield process.start(START_S)
    process.end()


@pytest.fixture(scope="module")
def tokenizer(model_path: Path) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(model_path)


@pytest.fixture(scope="module")
def prompt(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    return list(tokenizer.encode("The capital of France is"))


async def test_greedy_text_is_the_same_streamed_and_whole(scheduler: SchedulerProcess, prompt: list[int]) -> None:
    async with SessionClient(scheduler.address) as session:
        assert session.welcome is not None
        replica = session.welcome.replica
        assert (replica.vocab_size, replica.dtype, replica.max_running_requests) == (49152, "float32", 4)
        assert replica.total_blocks > 0
        await session.submit("streamed", prompt, temperature=0, max_tokens=24, ignore_eos=True)
        await session.submit("whole", prompt, temperature=0, max_tokens=24, ignore_eos=True, final_only=True)
        streamed = await session.finished("streamed", ANSWER_S)
        await session.finished("whole", ANSWER_S)
        assert session.text("streamed") == session.text("whole")
        assert "Paris" in session.text("streamed")
        assert session.token_ids("streamed") == session.token_ids("whole")
        assert len(session.events["whole"]) == 2
        assert outcome(streamed) is Outcome.LENGTH
        assert streamed.usage.output_tokens == 24
        assert streamed.usage.prompt_tokens == len(prompt)
        assert 0 <= streamed.usage.queue_seconds <= streamed.usage.first_token_seconds <= streamed.usage.total_seconds


async def test_a_prompt_seen_before_counts_as_cached(scheduler: SchedulerProcess, prompt: list[int]) -> None:
    async with SessionClient(scheduler.address) as session:
        # Longer than one KV block: only whole blocks are cached.
        long_prompt = prompt * 60
        for name in ("cold", "warm"):
            await session.submit(name, long_prompt, max_tokens=2)
            await session.finished(name, ANSWER_S)
        assert session.finishes("warm")[0].usage.cached_tokens > 0


async def test_stops_choices_seeds_and_logprobs(scheduler: SchedulerProcess, prompt: list[int]) -> None:
    async with SessionClient(scheduler.address) as session:
        await session.submit("stop", prompt, temperature=0, max_tokens=24, stop=["Paris"])
        await session.submit("n", prompt, n=3, seed=3, max_tokens=8, ignore_eos=True)
        await session.submit("seed", prompt, seed=5, max_tokens=8, ignore_eos=True)
        await session.submit("logprobs", prompt, temperature=0, max_tokens=4, logprobs=2, prompt_logprobs=1)
        stopped = await session.finished("stop", ANSWER_S)
        assert outcome(stopped) is Outcome.STOP
        assert stopped.choices[0].stop_string == "Paris"
        assert "Paris" not in session.text("stop")
        finished = await session.finished("n", ANSWER_S)
        assert [choice.index for choice in finished.choices] == [0, 1, 2]
        assert finished.usage.output_tokens == 24
        assert len({tuple(session.token_ids("n", index)) for index in range(3)}) > 1
        await session.finished("seed", ANSWER_S)
        await session.submit("again", prompt, seed=5, max_tokens=8, ignore_eos=True)
        await session.finished("again", ANSWER_S)
        assert session.token_ids("seed") == session.token_ids("again")
        await session.finished("logprobs", ANSWER_S)
        first = next(event.delta for event in session.events["logprobs"] if event.HasField("delta"))
        candidates = first.logprobs[0].candidates
        assert len(candidates) == 2
        assert candidates[0].token_id == first.token_ids[0]
        assert candidates[0].rank == 1
        assert candidates[0].token.decode() == first.text
        all_events = session.events["logprobs"]
        [logprobs] = [event.prompt_logprobs for event in all_events if event.HasField("prompt_logprobs")]
        assert [len(position.candidates) > 0 for position in logprobs.positions] == [False] + [True] * (len(prompt) - 1)


async def test_structured_output(scheduler: SchedulerProcess, prompt: list[int]) -> None:
    async with SessionClient(scheduler.address) as session:
        await session.submit("json", prompt, temperature=0, max_tokens=60, structured_output={"json_schema": WORDS})
        await session.submit("choice", prompt, structured_output={"choice": {"values": ["yes", "no"]}})
        await session.finished("json", ANSWER_S)
        assert set(json.loads(session.text("json"))) == {"word"}
        await session.finished("choice", ANSWER_S)
        assert session.text("choice") in ("yes", "no")


@pytest.mark.parametrize(
    ("constraint", "field"),
    [
        ({"regex": "([a-z"}, "regex"),
        ({"grammar": "root ::= undefined_rule"}, "grammar"),
        ({"json_schema": '{"type": "no-such-type"}'}, "json_schema"),
        ({"structural_tag": "{}"}, "structural_tag"),
    ],
)
async def test_a_grammar_that_does_not_compile_is_refused_and_harms_nobody(
    scheduler: SchedulerProcess, prompt: list[int], constraint: dict[str, str], field: str
) -> None:
    async with SessionClient(scheduler.address) as session:
        await session.submit("good", prompt, max_tokens=8, ignore_eos=True)
        await session.submit("bad", prompt, max_tokens=8, structured_output=constraint)
        refused = await session.finished("bad", ANSWER_S)
        assert outcome(refused) is Outcome.REJECTED_INVALID
        assert refused.invalid_field == f"sampling.structured_output.{field}"
        assert outcome(await session.finished("good", ANSWER_S)) is Outcome.LENGTH


async def test_text_is_cut_at_characters(
    scheduler: SchedulerProcess, prompt: list[int], tokenizer: PreTrainedTokenizerBase
) -> None:
    wanted = "žluťoučký 日本語 🙂🙃"
    async with SessionClient(scheduler.address) as session:
        await session.submit("a", prompt, max_tokens=60, structured_output={"choice": {"values": [wanted]}})
        await session.finished("a", ANSWER_S)
        deltas = [event.delta for event in session.events["a"] if event.HasField("delta")]
        assert session.text("a") == wanted
        assert len(deltas) > len(wanted) / 2
        assert all("\ufffd" not in delta.text for delta in deltas)


async def test_a_prompt_that_ends_within_a_character_does_not_come_back(
    scheduler: SchedulerProcess, tokenizer: PreTrainedTokenizerBase
) -> None:
    whole = list(tokenizer.encode("A smile is drawn as 🙃"))
    half = whole[:-1]
    assert tokenizer.decode(half).endswith("\ufffd")
    async with SessionClient(scheduler.address) as session:
        await session.submit("completes", half, max_tokens=1, allowed_token_ids=whole[-1:], ignore_eos=True)
        await session.submit("breaks", half, temperature=0, max_tokens=12, ignore_eos=True)
        await session.finished("completes", ANSWER_S)
        assert session.text("completes") == "🙃"
        await session.finished("breaks", ANSWER_S)
        assert "smile" not in session.text("breaks")


async def test_cancel_deadline_and_overload(scheduler: SchedulerProcess, prompt: list[int]) -> None:
    async with SessionClient(scheduler.address) as session:
        for number in range(12):
            await session.submit(f"r{number}", prompt, max_tokens=400, ignore_eos=True, timeout_ms=1500)
        await session.first_delta("r0", ANSWER_S)
        await session.cancel("r0")
        outcomes = [outcome(await session.finished(f"r{number}", ANSWER_S)) for number in range(12)]
        assert outcomes[0] is Outcome.CANCELLED
        assert outcomes.count(Outcome.REJECTED_OVERLOAD) == 4
        assert outcomes.count(Outcome.DEADLINE) == 7
        await session.submit("after", prompt, max_tokens=4, ignore_eos=True)
        assert outcome(await session.finished("after", ANSWER_S)) is Outcome.LENGTH


def test_vllm_metrics_stand_beside_ours(scheduler: SchedulerProcess) -> None:
    listen = json.loads(scheduler.config_text)["server"]["metrics_listen"]
    with urllib.request.urlopen(f"http://{listen}/metrics", timeout=5) as page:
        text = page.read().decode()
    assert "vllm:generation_tokens_total" in text
    assert "forerun_requests_total" in text


async def test_kill_9_of_the_engine_core(tmp_path: Path, model_path: Path, prompt: list[int]) -> None:
    process = scheduler_process(tmp_path, model_path).start(START_S)
    try:
        children = psutil.Process(process.pid).children(recursive=True)
        async with SessionClient(process.address) as session:
            await session.submit("lost", prompt, max_tokens=480, ignore_eos=True)
            await session.first_delta("lost", ANSWER_S)
            core = next(child for child in children if "EngineCore" in " ".join(child.cmdline()))
            core.kill()
            assert outcome(await session.finished("lost", 10)) is Outcome.REPLICA_LOST
        assert process.wait(15) == 3
        await eventually(lambda: not any(child.is_running() for child in children), 10)
    finally:
        process.end()


async def test_sigterm_leaves_no_process(tmp_path: Path, model_path: Path, prompt: list[int]) -> None:
    process = scheduler_process(tmp_path, model_path).start(START_S)
    try:
        children = psutil.Process(process.pid).children(recursive=True)
        async with SessionClient(process.address) as session:
            await session.submit("runs", prompt, max_tokens=40, ignore_eos=True)
            await session.first_delta("runs", ANSWER_S)
            process.signal(signal.SIGTERM)
            assert outcome(await session.finished("runs", ANSWER_S)) is Outcome.LENGTH
        assert process.wait(30) == 0
        await eventually(lambda: not any(child.is_running() for child in children), 10)
    finally:
        process.end()


async def test_an_engine_core_that_stands_still_is_given_up(
    tmp_path: Path, model_path: Path, prompt: list[int]
) -> None:
    process = scheduler_process(tmp_path, model_path, step_timeout_s=4.0).start(START_S)
    try:
        children = psutil.Process(process.pid).children(recursive=True)
        async with SessionClient(process.address) as session:
            await session.submit("stuck", prompt, max_tokens=480, ignore_eos=True)
            await session.first_delta("stuck", ANSWER_S)
            core = next(child for child in children if "EngineCore" in " ".join(child.cmdline()))
            core.suspend()
            assert outcome(await session.finished("stuck", 15)) is Outcome.REPLICA_LOST
        assert process.wait(30) == 3
        await eventually(lambda: not any(child.is_running() for child in children), 10)
    finally:
        process.end()
