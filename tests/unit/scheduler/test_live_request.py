"""Exactly one end, whatever happens in whatever order, and the engine always lets go."""

import asyncio
import random
from collections.abc import Callable

import pytest
from opentelemetry.trace import NoOpTracer

from services.common.errors import invalid
from services.common.outcome import Outcome
from services.common.types import Delta, Finished, GenerationEvent, SamplingOptions, Submission
from services.scheduler.admission_span import AdmissionSpan
from services.scheduler.engine import EngineLostError
from services.scheduler.live_request import LiveRequest
from tests.support.scripted_engine import ScriptedEngine

DELTA = Delta(0, "x", (1,))
DONE = Finished(Outcome.STOP)


class Watched:
    """A live request over a scripted engine, and what came of it."""

    def __init__(self, timeout_s: float | None = None) -> None:
        self.engine = ScriptedEngine()
        self.seen: list[GenerationEvent] = []
        self.lost: list[str] = []
        submission = Submission("a", (1, 2), SamplingOptions(), timeout_s=timeout_s)
        span = AdmissionSpan(NoOpTracer(), submission, "r1", 1)
        self.request = LiveRequest(self.engine, submission, "s1.a", self.seen.append, span, self.lost.append)

    def say(self, *things: GenerationEvent | Exception | None) -> "Watched":
        for thing in things:
            self.engine.say("s1.a", thing)
        return self

    async def end(self) -> Finished:
        await asyncio.wait_for(self.request.wait(), 5)
        finishes = [event for event in self.seen if isinstance(event, Finished)]
        assert len(finishes) == 1
        assert self.seen[-1] is finishes[0]
        assert self.request.is_finished
        assert len(self.engine.let_go) == len(self.engine.begun)
        return finishes[0]


async def test_the_engines_own_end() -> None:
    watched = Watched().say(DELTA, DELTA, DONE)
    assert await watched.end() is DONE
    assert watched.seen == [DELTA, DELTA, DONE]


async def test_stop_while_running_counts_what_was_emitted() -> None:
    watched = Watched().say(DELTA, DELTA)
    await asyncio.sleep(0.01)
    watched.request.stop(Outcome.CANCELLED, "enough")
    finished = await watched.end()
    assert (finished.outcome, finished.message) == (Outcome.CANCELLED, "enough")
    assert (finished.usage.prompt_tokens, finished.usage.output_tokens) == (2, 2)
    assert finished.usage.first_token_seconds is not None


async def test_stop_before_the_first_step() -> None:
    watched = Watched()
    watched.request.stop(Outcome.CANCELLED, "at once")
    assert (await watched.end()).outcome is Outcome.CANCELLED
    assert not watched.engine.begun


async def test_the_first_reason_counts() -> None:
    watched = Watched()
    await asyncio.sleep(0)
    watched.request.stop(Outcome.CANCELLED, "first")
    watched.request.stop(Outcome.REPLICA_LOST, "second")
    watched.request.abandon("third")
    assert (await watched.end()).message == "first"


async def test_the_deadline() -> None:
    watched = Watched(timeout_s=0.02).say(DELTA)
    finished = await watched.end()
    assert finished.outcome is Outcome.DEADLINE
    assert finished.usage.output_tokens == 1


@pytest.mark.parametrize(
    ("error", "emitted", "outcome"),
    [
        (EngineLostError("gone"), False, Outcome.REJECTED_UNAVAILABLE),
        (EngineLostError("gone"), True, Outcome.REPLICA_LOST),
        (invalid("sampling.stop", "no"), False, Outcome.REJECTED_INVALID),
        (ZeroDivisionError("a bug"), True, Outcome.INTERNAL),
        (None, True, Outcome.INTERNAL),
    ],
)
async def test_what_the_engine_raises(error: Exception | None, emitted: bool, outcome: Outcome) -> None:
    watched = Watched().say(*[DELTA] * emitted, error)
    finished = await watched.end()
    assert finished.outcome is outcome
    assert watched.lost == (["gone"] if isinstance(error, EngineLostError) else [])
    assert "a bug" not in finished.message


@pytest.mark.parametrize("emitted", [False, True])
async def test_abandoned_requests_say_whether_a_retry_is_safe(emitted: bool) -> None:
    watched = Watched().say(*[DELTA] * emitted)
    await asyncio.sleep(0.01)
    watched.request.abandon("the replica stops")
    finished = await watched.end()
    assert finished.outcome is (Outcome.REPLICA_LOST if emitted else Outcome.REJECTED_UNAVAILABLE)
    assert (finished.retry_after_ms is None) is emitted


async def test_cancelled_tasks_of_a_dying_loop_end_too() -> None:
    watched = Watched()
    await asyncio.sleep(0)
    watched.request._task.cancel()
    assert (await watched.end()).outcome is Outcome.CANCELLED


@pytest.mark.parametrize("seed", range(60))
async def test_any_order_of_endings(seed: int) -> None:
    chance = random.Random(seed)
    watched = Watched(timeout_s=chance.choice([None, 0.0, 0.002]))
    actions: list[Callable[[], object]] = [
        lambda: watched.say(DELTA),
        lambda: watched.say(DONE),
        lambda: watched.say(EngineLostError("gone")),
        lambda: watched.request.stop(Outcome.CANCELLED, "c"),
        lambda: watched.request.abandon("a"),
    ]
    for action in chance.sample(actions, len(actions)):
        action()
        if chance.random() < 0.5:
            await asyncio.sleep(chance.choice([0, 0.001]))
    await watched.end()
