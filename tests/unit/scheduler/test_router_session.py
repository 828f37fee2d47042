"""One router's requests: names, refusals, cancels, and an end that aborts all."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from opentelemetry.trace import NoOpTracer

from services.common.metrics import ServiceMetrics
from services.common.outcome import Outcome
from services.common.types import Delta, Finished, ReplicaState, SamplingOptions, Submission
from services.scheduler.admission import AdmissionQueue
from services.scheduler.event_buffer import EventBuffer
from services.scheduler.front import Front
from services.scheduler.metrics import SchedulerMetrics
from services.scheduler.session import RouterSession
from services.scheduler.status import ReplicaStatus
from tests.support.scripted_engine import ScriptedEngine


class Replica:
    """Everything between a session and a scripted engine."""

    def __init__(self) -> None:
        self.engine = ScriptedEngine()
        self.status = ReplicaStatus()
        self.service_metrics = ServiceMetrics("test")
        metrics = SchedulerMetrics(self.service_metrics, "r1")
        self.front = Front(self.engine, self.status, AdmissionQueue(2, 2), metrics, NoOpTracer(), 10_000)
        self.session = self.connect("s1")

    def connect(self, session_id: str) -> RouterSession:
        return RouterSession(session_id, self.front, self.status, EventBuffer(100, 10**6))

    def ended(self, outcome: Outcome) -> float | None:
        return self.service_metrics.registry.get_sample_value("forerun_requests_total", {"outcome": outcome.value})


@pytest.fixture
async def replica() -> AsyncIterator[Replica]:
    replica = Replica()
    yield replica
    await replica.front.abandon_all("the test is over", 5)


def submission(request_id: str, **sampling: int) -> Submission:
    return Submission(request_id, (1, 2, 3), SamplingOptions(**sampling))  # type: ignore[arg-type]


async def events_of(session: RouterSession) -> list[tuple[str, object]]:
    await asyncio.sleep(0.01)
    taken = await asyncio.wait_for(session.buffer.take(), 1)
    assert taken is not None
    return list(taken.events)


async def outcomes_of(session: RouterSession) -> list[tuple[str, Outcome]]:
    return [(id_, event.outcome) for id_, event in await events_of(session) if isinstance(event, Finished)]


async def test_events_carry_the_routers_own_names(replica: Replica) -> None:
    replica.session.submit(submission("a"))
    replica.engine.say("s1.a", Delta(0, "x", (1,)))
    replica.engine.say("s1.a", Finished(Outcome.STOP))
    assert [id_ for id_, _ in await events_of(replica.session)] == ["a", "a"]
    assert replica.front.live_requests == 0
    assert replica.ended(Outcome.STOP) == 1
    # The name is free again.
    replica.session.submit(submission("a"))
    assert replica.front.live_requests == 1


async def test_a_name_in_flight_is_refused_and_the_first_lives_on(replica: Replica) -> None:
    replica.session.submit(submission("a"))
    replica.session.submit(submission("a"))
    assert await outcomes_of(replica.session) == [("a", Outcome.REJECTED_INVALID)]
    replica.session.cancel("a")
    assert await outcomes_of(replica.session) == [("a", Outcome.CANCELLED)]


async def test_the_bound_holds_over_all_sessions(replica: Replica) -> None:
    other = replica.connect("s2")
    replica.session.submit(submission("a", n=2))
    other.submit(submission("a", n=2))
    replica.session.submit(submission("b"))
    assert await outcomes_of(replica.session) == [("b", Outcome.REJECTED_OVERLOAD)]
    replica.engine.say("s2.a", Finished(Outcome.LENGTH))
    assert await outcomes_of(other) == [("a", Outcome.LENGTH)]
    replica.session.submit(submission("b"))
    assert replica.front.live_requests == 2


@pytest.mark.parametrize(
    ("bad", "field"),
    [
        (Submission("", (1,), SamplingOptions()), "request_id"),
        (Submission("a b", (1,), SamplingOptions()), "request_id"),
        (Submission("a", (), SamplingOptions()), "prompt"),
        (Submission("a", (1000,), SamplingOptions()), "prompt"),
        (Submission("a", (1,), SamplingOptions(top_p=0.0)), "sampling.top_p"),
        (Submission("a", (1,) * 99, SamplingOptions(prompt_logprobs=20)), "sampling.prompt_logprobs"),
    ],
)
async def test_bad_requests_take_no_place(replica: Replica, bad: Submission, field: str) -> None:
    replica.session.submit(bad)
    [(_, finished)] = await events_of(replica.session)
    assert isinstance(finished, Finished)
    assert (finished.outcome, finished.invalid_field) == (Outcome.REJECTED_INVALID, field)
    assert replica.front.live_requests == 0
    assert not replica.engine.begun


async def test_closing_aborts_everything_and_only_its_own(replica: Replica) -> None:
    other = replica.connect("s2")
    other.submit(submission("a"))
    replica.session.submit(submission("a"))
    replica.session.submit(submission("b"))
    await asyncio.sleep(0.01)
    replica.session.close()
    await asyncio.sleep(0.01)
    assert sorted(replica.engine.let_go) == ["s1.a", "s1.b"]
    assert replica.front.live_requests == 1
    assert replica.ended(Outcome.CANCELLED) == 2


async def test_state_changes_reach_the_router_until_it_leaves(replica: Replica) -> None:
    replica.status.stall("stage 0 is silent")
    taken = await replica.session.buffer.take()
    assert taken is not None and taken.notice is not None
    assert taken.notice.state is ReplicaState.STALLED
    replica.session.submit(submission("a"))
    assert await outcomes_of(replica.session) == [("a", Outcome.REJECTED_UNAVAILABLE)]
    replica.session.close()
    replica.status.recover()


async def test_abandoning_waits_for_the_engine(replica: Replica) -> None:
    replica.session.submit(submission("a"))
    idle = asyncio.create_task(replica.front.wait_idle())
    await asyncio.sleep(0.01)
    assert not idle.done()
    await replica.front.abandon_all("bye", 5)
    assert replica.engine.let_go == ["s1.a"]
    await asyncio.wait_for(idle, 1)
    assert await outcomes_of(replica.session) == [("a", Outcome.REJECTED_UNAVAILABLE)]
