"""The fake engine keeps the engines' contract and its own books."""

import asyncio
import random
from contextlib import aclosing
from typing import Any

import pytest

from services.common.outcome import Outcome
from services.common.types import Delta, Finished, GenerationEvent, PromptLogprobs, SamplingOptions, Submission
from services.scheduler.config import FakeEngineConfig, SchedulerConfig
from services.scheduler.engine import Engine, EngineLostError
from services.scheduler.fake_answer import token_text
from services.scheduler.fake_engine import FakeEngine


async def started(**fake: Any) -> FakeEngine:
    values = {"step_time_s": 0.0, "max_model_len": 256, "total_blocks": 32, "block_size_tokens": 8, **fake}
    engine: FakeEngine = FakeEngine(SchedulerConfig(engine="fake", fake=FakeEngineConfig(**values)), "127.0.0.1:1", 1)
    await engine.start()
    return engine


async def answer(engine: Engine, request_id: str = "a", prompt: int = 4, **sampling: Any) -> list[GenerationEvent]:
    submission = Submission(request_id, tuple(range(1, prompt + 1)), SamplingOptions(**sampling))
    return [event async for event in engine.generate(submission)]


def tokens(events: list[GenerationEvent], index: int = 0) -> list[int]:
    return [id_ for event in events if isinstance(event, Delta) and event.index == index for id_ in event.token_ids]


def text(events: list[GenerationEvent], index: int = 0) -> str:
    return "".join(event.text for event in events if isinstance(event, Delta) and event.index == index)


def finished(events: list[GenerationEvent]) -> Finished:
    assert isinstance(events[-1], Finished)
    assert not any(isinstance(event, Finished) for event in events[:-1])
    return events[-1]


async def test_answers_are_deterministic_and_stop_by_themselves() -> None:
    engine = await started(mean_answer_tokens=8)
    one, two = await answer(engine, "a"), await answer(engine, "b", temperature=0.0)
    assert tokens(await answer(engine, "c", temperature=0.0)) == tokens(two)
    assert tokens(await answer(engine, "d")) != tokens(one)
    end = finished(two)
    assert end.outcome is Outcome.STOP
    assert end.usage.output_tokens == len(tokens(two)) <= 16
    assert end.usage.prompt_tokens == 4
    assert end.choices[0].stop is None
    await engine.stop()


async def test_limits_stops_and_choices() -> None:
    engine = await started()
    full = await answer(engine, "a", temperature=0.0, max_tokens=12, ignore_eos=True)
    assert finished(full).outcome is Outcome.LENGTH
    assert text(full) == "".join(map(token_text, tokens(full)))
    words = text(full).split(" ")[1:]
    stopped = await answer(engine, "b", temperature=0.0, max_tokens=12, ignore_eos=True, stop=(words[5],))
    assert finished(stopped).choices[0].stop == words[5]
    assert words[5] not in text(stopped)
    assert text(full).startswith(text(stopped))
    by_token = await answer(engine, "c", temperature=0.0, ignore_eos=True, stop_token_ids=(tokens(full)[3],))
    assert finished(by_token).choices[0].stop == tokens(full)[3]
    unstopped = await answer(engine, "d", temperature=0.0, max_tokens=12, min_tokens=10, ignore_eos=True, stop=(" ",))
    assert finished(unstopped).usage.output_tokens > 10
    several = await answer(engine, "e", n=3, seed=1, max_tokens=5, ignore_eos=True)
    assert [choice.index for choice in finished(several).choices] == [0, 1, 2]
    context = await answer(engine, "f", prompt=250, ignore_eos=True)
    assert len(tokens(context)) == 6
    await engine.stop()


async def test_logprobs() -> None:
    engine = await started()
    events = await answer(engine, logprobs=2, prompt_logprobs=0, max_tokens=3, ignore_eos=True)
    assert isinstance(events[0], PromptLogprobs)
    assert [len(position) for position in events[0].positions] == [0, 1, 1, 1]
    deltas = [event for event in events if isinstance(event, Delta)]
    assert all(delta.logprobs[0][0].token_id == delta.token_ids[0] for delta in deltas)
    assert all(len(delta.logprobs[0]) == 3 for delta in deltas)
    await engine.stop()


async def test_blocks_come_back_and_a_full_pool_preempts() -> None:
    engine = await started(max_num_seqs=8)
    results = await asyncio.gather(
        *(answer(engine, f"r{i}", prompt=20, max_tokens=60, ignore_eos=True) for i in range(8))
    )
    assert all(len(tokens(events)) == 60 for events in results)
    assert sum(finished(events).usage.preemptions for events in results) > 0
    load = engine.load()
    assert (load.running, load.waiting, load.free_blocks) == (0, 0, 32)
    await engine.stop()


@pytest.mark.parametrize("seed", range(5))
async def test_abandoned_requests_leave_nothing(seed: int) -> None:
    engine = await started(max_num_seqs=4)
    chance = random.Random(seed)

    async def run(number: int) -> None:
        submission = Submission(f"r{number}", (1,) * chance.randint(1, 60), SamplingOptions(n=chance.randint(1, 2)))
        async with aclosing(engine.generate(submission)) as events:
            left = chance.randint(0, 20)
            async for _ in events:
                left -= 1
                if left < 0:
                    break

    tasks = [asyncio.create_task(run(number)) for number in range(20)]
    for task in tasks:
        await asyncio.sleep(0)
        if chance.random() < 0.3:
            task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert engine.load().free_blocks == 32
    assert (engine.info().running_requests, engine.info().waiting_requests) == (0, 0)
    await engine.stop()


async def test_death_reaches_everyone_and_is_for_good() -> None:
    engine = await started(max_num_seqs=1, die_after_tokens=5)
    results = await asyncio.gather(
        *(answer(engine, f"r{i}", ignore_eos=True) for i in range(3)), return_exceptions=True
    )
    assert all(isinstance(result, EngineLostError) for result in results)
    assert not engine.alive
    with pytest.raises(EngineLostError):
        await answer(engine)
    await engine.stop()
    await engine.stop()


async def test_stop_ends_what_runs() -> None:
    engine = await started(step_time_s=0.01)
    running = asyncio.create_task(answer(engine, ignore_eos=True))
    await asyncio.sleep(0.05)
    await engine.stop()
    with pytest.raises(EngineLostError):
        await running


async def test_stop_before_start() -> None:
    await FakeEngine(SchedulerConfig(engine="fake"), "127.0.0.1:1", 1).stop()
