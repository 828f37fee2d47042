"""The queue between session and reader: nothing lost, nothing reordered within a choice, never long."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.common.errors import RequestEndedError
from services.common.outcome import Outcome
from services.common.types import Delta, Finished, PromptLogprobs, TokenLogprob
from services.router.event_queue import EventQueue, merge_events

LOGPROBS = ((TokenLogprob(1, -0.5, 1, b"x"),),)

deltas = st.builds(
    Delta,
    index=st.integers(0, 3),
    text=st.text(max_size=3),
    token_ids=st.lists(st.integers(0, 9), max_size=3).map(tuple),
    logprobs=st.sampled_from([(), LOGPROBS]),
)


def output(events: list[object]) -> dict[int, tuple[str, tuple[int, ...], int]]:
    """Text, tokens and number of logprobs by choice."""
    found: dict[int, tuple[str, tuple[int, ...], int]] = {}
    for event in events:
        if isinstance(event, Delta):
            text, ids, count = found.get(event.index, ("", (), 0))
            found[event.index] = (text + event.text, ids + event.token_ids, count + len(event.logprobs))
    return found


@given(st.lists(deltas, max_size=40), st.integers(1, 8), st.sets(st.integers(0, 40)))
async def test_whatever_the_reader_does_no_output_is_lost(sent: list[Delta], limit: int, reads: set[int]) -> None:
    queue = EventQueue(merge_above=limit)
    received: list[object] = []
    for position, event in enumerate(sent):
        queue.put(event)
        if position in reads:
            received += await queue.get()
    end = Finished(Outcome.STOP)
    queue.put(end)
    received += await queue.get()
    assert received[-1] is end
    assert output(received) == output(list(sent))


def test_a_lagging_reader_keeps_the_queue_short() -> None:
    queue = EventQueue(merge_above=4)
    for number in range(1000):
        queue.put(Delta(number % 2, "x", (number,)))
        assert len(queue._events) <= 5


def test_many_choices_do_not_merge_at_every_event() -> None:
    queue = EventQueue(merge_above=4)
    for number in range(64 * 4):
        queue.put(Delta(number % 64, "x", (number,)))
    assert len(queue._events) <= 2 * 64 + 1


def test_prompt_logprobs_come_first_and_the_end_last() -> None:
    prompt, end = PromptLogprobs(((),)), Finished(Outcome.STOP)
    merged = merge_events([Delta(0, "a", (1,)), prompt, Delta(0, "b", (2,)), end])
    assert merged == [prompt, Delta(0, "ab", (1, 2)), end]


async def test_an_error_comes_after_what_was_put_in_before() -> None:
    queue = EventQueue()
    queue.put(Delta(0, "a", (1,)))
    queue.fail(RequestEndedError(Outcome.REPLICA_LOST, "gone"))
    queue.put(Delta(0, "late", (2,)))
    assert [event.text for event in await queue.get() if isinstance(event, Delta)] == ["a"]
    for _ in range(2):
        with pytest.raises(RequestEndedError, match="gone"):
            await queue.get()


async def test_a_waiting_reader_wakes_and_a_cancelled_one_harms_nothing() -> None:
    queue = EventQueue()
    waiting = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    waiting = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    queue.put(Delta(0, "a", (1,)))
    assert len(await asyncio.wait_for(waiting, 1)) == 1


async def test_after_the_end_nothing_is_taken() -> None:
    queue = EventQueue()
    queue.put(Finished(Outcome.STOP))
    queue.fail(RequestEndedError(Outcome.REPLICA_LOST, "gone"))
    assert queue.ended
    assert await queue.get() == [Finished(Outcome.STOP)]
