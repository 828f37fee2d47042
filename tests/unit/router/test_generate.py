"""The domain call: one outcome for every way a request can go, and nothing held afterwards."""

import asyncio
from contextlib import aclosing

import pytest

from services.common.errors import RequestEndedError, invalid
from services.common.outcome import Outcome
from services.common.types import Delta, Finished, ReplicaState, SamplingOptions
from services.router.generate import Deadlines
from services.router.request import RouterEvent, Started, TextPrompt
from tests.support.router_fakes import (
    CallUnderTest,
    FakeLedger,
    FakePool,
    FakeSession,
    FakeSubmitted,
    answers,
    build_call,
    delta,
    fails,
    samples,
    stopped,
    tokens_request,
)


async def collect(under_test: CallUnderTest, request: object = None) -> list[RouterEvent]:
    events: list[RouterEvent] = []
    async with aclosing(under_test.call.generate(request or tokens_request())) as batches:  # type: ignore[arg-type]
        async for batch in batches:
            events += batch
    return events


async def ended(under_test: CallUnderTest, request: object = None) -> RequestEndedError:
    with pytest.raises(RequestEndedError) as caught:
        await collect(under_test, request)
    return caught.value


async def test_an_answer_starts_streams_and_finishes_once() -> None:
    replica = FakeSession("r0", answers(delta("a"), delta("b"), stopped(2)))
    under_test = build_call(FakePool(replica))
    events = await collect(under_test, tokens_request(request_id="mine"))
    assert [type(event) for event in events] == [Started, Delta, Delta, Finished]
    assert events[0] == Started("mine", "r0", "0" * 32, 3)
    assert under_test.outcomes() == {"stop": 1}
    assert replica.submissions[0].closed == 1
    assert under_test.admission.in_flight == 0


async def test_the_outcome_counts_even_if_nobody_asks_for_more_after_the_end() -> None:
    under_test = build_call(FakePool(FakeSession("r0", answers(stopped()))))
    batches = under_test.call.generate(tokens_request())
    await anext(batches)
    assert under_test.outcomes() == {"stop": 1}
    await batches.aclose()
    assert under_test.outcomes() == {"stop": 1}


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (tokens_request(request_id="no spaces"), "request_id"),
        (tokens_request(sampling=SamplingOptions(temperature=-1)), "sampling.temperature"),
        (tokens_request(sampling=SamplingOptions(temperature=float("nan"))), "sampling.temperature"),
        (tokens_request(sampling=SamplingOptions(max_tokens=0)), "sampling.max_tokens"),
        (tokens_request(*[1] * 300), "prompt"),
        (tokens_request(1, 5000), "prompt"),
        (tokens_request(prompt=TextPrompt("text")), "text"),
    ],
)
async def test_bad_input_names_its_field_and_reaches_no_replica(request_: object, field: str) -> None:
    replica = FakeSession("r0")
    under_test = build_call(FakePool(replica))
    error = await ended(under_test, request_)
    assert (error.outcome, error.field) == (Outcome.REJECTED_INVALID, field)
    assert replica.submissions == []
    assert under_test.outcomes() == {"rejected-invalid": 1}


async def test_without_a_serving_replica_it_is_unavailable_at_once() -> None:
    under_test = build_call(FakePool(FakeSession("r0", state=ReplicaState.DRAINING)))
    error = await ended(under_test)
    assert error.outcome is Outcome.REJECTED_UNAVAILABLE
    assert error.retry_after_ms is not None


async def test_without_a_free_place_it_is_overload() -> None:
    replica = FakeSession("r0")
    replica.has_slot = False
    error = await ended(build_call(FakePool(replica)))
    assert (error.outcome, error.retry_after_ms) == (Outcome.REJECTED_OVERLOAD, 500)


async def test_beyond_the_routers_bound_it_is_overload_at_once() -> None:
    replica = FakeSession("r0")
    under_test = build_call(FakePool(replica), max_requests=2)
    running = [asyncio.create_task(collect(under_test)) for _ in range(2)]
    await asyncio.sleep(0.01)
    error = await ended(under_test)
    assert (error.outcome, error.retry_after_ms) == (Outcome.REJECTED_OVERLOAD, 500)
    for submitted in replica.submissions:
        submitted.queue.put(stopped())
    await asyncio.gather(*running)
    assert under_test.outcomes() == {"rejected-overload": 1, "stop": 2}


async def test_an_id_in_flight_is_refused_and_free_again_afterwards() -> None:
    replica = FakeSession("r0")
    under_test = build_call(FakePool(replica))
    running = asyncio.create_task(collect(under_test, tokens_request(request_id="x")))
    await asyncio.sleep(0.01)
    assert (await ended(under_test, tokens_request(request_id="x"))).field == "request_id"
    replica.submissions[0].queue.put(stopped())
    await running
    again = asyncio.create_task(collect(under_test, tokens_request(request_id="x")))
    await asyncio.sleep(0.01)
    replica.submissions[1].queue.put(stopped())
    assert len(await again) == 2


@pytest.mark.parametrize(
    "outcome", [Outcome.REPLICA_LOST, Outcome.REJECTED_OVERLOAD, Outcome.REJECTED_UNAVAILABLE], ids=str
)
@pytest.mark.parametrize("how", ["session", "event"])
async def test_what_emitted_nothing_goes_to_another_replica_unseen(outcome: Outcome, how: str) -> None:
    first = fails(outcome) if how == "session" else answers(Finished(outcome, message="no"))
    served = answers(delta("a"), stopped())
    calls: list[str] = []

    def on_submit(submitted: FakeSubmitted) -> None:
        calls.append(submitted.replica_id)
        (first if len(calls) == 1 else served)(submitted)

    under_test = build_call(FakePool(FakeSession("r0", on_submit), FakeSession("r1", on_submit)))
    events = await collect(under_test)
    assert sorted(calls) == ["r0", "r1"]
    assert [type(event) for event in events] == [Started, Delta, Finished]
    assert isinstance(events[0], Started)
    assert events[0].replica_id == calls[1]
    assert under_test.outcomes() == {"stop": 1}
    assert samples(under_test.metrics, "forerun_request_retries_total", "outcome") == {outcome.value: 1}


async def test_it_is_retried_once_only() -> None:
    pool = FakePool(*(FakeSession(f"r{number}", fails(Outcome.REPLICA_LOST)) for number in range(4)))
    error = await ended(build_call(pool))
    assert error.outcome is Outcome.REJECTED_UNAVAILABLE
    assert sum(len(session.submissions) for session in pool.sessions.values()) == 2


async def test_a_lone_replicas_loss_before_output_invites_a_retry() -> None:
    error = await ended(build_call(FakePool(FakeSession("r0", fails(Outcome.REPLICA_LOST, "gone")))))
    assert error.outcome is Outcome.REJECTED_UNAVAILABLE
    assert "gone" in error.message


async def test_after_output_a_lost_replica_is_the_end() -> None:
    def on_submit(submitted: FakeSubmitted) -> None:
        submitted.queue.put(delta())
        submitted.queue.fail(RequestEndedError(Outcome.REPLICA_LOST, "gone"))

    pool = FakePool(FakeSession("r0", on_submit), FakeSession("r1", on_submit))
    under_test = build_call(pool)
    assert (await ended(under_test)).outcome is Outcome.REPLICA_LOST
    assert sum(len(session.submissions) for session in pool.sessions.values()) == 1
    assert under_test.outcomes() == {"replica-lost": 1}


async def test_bad_input_found_by_the_replica_is_not_retried() -> None:
    refused = Finished(Outcome.REJECTED_INVALID, message="bad schema", invalid_field="sampling.structured_output")
    pool = FakePool(FakeSession("r0", answers(refused)), FakeSession("r1", answers(refused)))
    error = await ended(build_call(pool))
    assert (error.outcome, error.field) == (Outcome.REJECTED_INVALID, "sampling.structured_output")
    assert sum(len(session.submissions) for session in pool.sessions.values()) == 1


async def test_a_deadline_ends_a_request_that_waits() -> None:
    replica = FakeSession("r0")
    under_test = build_call(FakePool(replica))
    error = await asyncio.wait_for(ended(under_test, tokens_request(timeout_s=0.05)), 1)
    assert error.outcome is Outcome.DEADLINE
    assert replica.submissions[0].closed == 1
    assert under_test.outcomes() == {"deadline": 1}


@pytest.mark.parametrize(
    ("deadlines", "asked", "granted"),
    [
        (Deadlines(), None, None),
        (Deadlines(), 5.0, 5.0),
        (Deadlines(default_s=3.0), None, 3.0),
        (Deadlines(default_s=3.0), 9.0, 9.0),
        (Deadlines(longest_s=4.0), None, 4.0),
        (Deadlines(default_s=3.0, longest_s=2.0), None, 2.0),
        (Deadlines(longest_s=4.0), 9.0, 4.0),
    ],
)
def test_deadlines(deadlines: Deadlines, asked: float | None, granted: float | None) -> None:
    assert deadlines.timeout(asked) == granted


async def test_the_replica_is_told_the_time_left() -> None:
    replica = FakeSession("r0", answers(stopped()))
    await collect(build_call(FakePool(replica)), tokens_request(timeout_s=10.0))
    assert 9.0 < (replica.submissions[0].submission.timeout_s or 0.0) <= 10.0


@pytest.mark.parametrize("events", [(), (delta(),)], ids=["before output", "after output"])
async def test_a_client_that_leaves_cancels_at_the_replica(events: tuple[Delta, ...]) -> None:
    ledger = FakeLedger()
    replica = FakeSession("r0", answers(*events))
    under_test = build_call(FakePool(replica), ledger)
    await under_test.reservations.start()
    task = asyncio.create_task(collect(under_test))
    await asyncio.sleep(0.02)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert under_test.outcomes() == {"cancelled": 1}
    assert replica.submissions[0].closed == 1
    await under_test.reservations.close()
    assert ledger.held == {}


async def test_a_reader_that_closes_early_cancels() -> None:
    replica = FakeSession("r0", answers(delta()))
    under_test = build_call(FakePool(replica))
    batches = under_test.call.generate(tokens_request())
    await anext(batches)
    await batches.aclose()
    assert under_test.outcomes() == {"cancelled": 1}
    assert replica.submissions[0].closed == 1
    assert under_test.admission.in_flight == 0


async def test_a_bug_is_internal_and_frees_everything() -> None:
    def on_submit(submitted: FakeSubmitted) -> None:
        raise ZeroDivisionError

    under_test = build_call(FakePool(FakeSession("r0", on_submit)))
    error = await ended(under_test, tokens_request(request_id="mine"))
    assert error.outcome is Outcome.INTERNAL
    assert "mine" in error.message
    assert under_test.outcomes() == {"internal": 1}
    assert under_test.admission.in_flight == 0


async def test_every_reservation_comes_back() -> None:
    ledger = FakeLedger()
    pool = FakePool(FakeSession("r0", fails(Outcome.REPLICA_LOST)), FakeSession("r1", answers(delta(), stopped())))
    under_test = build_call(pool, ledger)
    await under_test.reservations.start()
    for _ in range(20):
        await collect(under_test)
    await under_test.reservations.close()
    assert ledger.held == {}
    used = [one.submission.reservation_id for session in pool.sessions.values() for one in session.submissions]
    assert len(set(used)) == len(used) >= 20
    assert all(used)


async def test_a_stopping_router_refuses_what_comes_new() -> None:
    under_test = build_call(FakePool(FakeSession("r0")))
    under_test.admission.close()
    assert (await ended(under_test)).outcome is Outcome.REJECTED_UNAVAILABLE
    await asyncio.wait_for(under_test.admission.wait_idle(), 1)


async def test_a_validation_error_of_the_renderer_ends_the_request() -> None:
    class Refuses:
        async def tokenize(self, prompt: TextPrompt) -> tuple[int, ...]:
            raise invalid("text", "too long")

    under_test = build_call(FakePool(FakeSession("r0")))
    under_test.call._renderer = Refuses  # type: ignore[assignment]
    assert (await ended(under_test, tokens_request(prompt=TextPrompt("x")))).field == "text"


async def test_a_slow_tokenizer_meets_the_deadline() -> None:
    class Slow:
        async def tokenize(self, prompt: TextPrompt) -> tuple[int, ...]:
            await asyncio.sleep(10)
            return ()

    under_test = build_call(FakePool(FakeSession("r0")))
    under_test.call._renderer = Slow  # type: ignore[assignment]
    error = await ended(under_test, tokens_request(prompt=TextPrompt("x"), timeout_s=0.05))
    assert error.outcome is Outcome.DEADLINE
