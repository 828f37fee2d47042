"""The buffer loses nothing, keeps order, stays small and gives up where it must."""

import asyncio
from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from services.common.outcome import Outcome
from services.common.types import Delta, Finished, GenerationEvent, PromptLogprobs, ReplicaState, TokenLogprob
from services.scheduler.event_buffer import MAX_MERGED_TOKENS, EventBuffer, StateNotice

POSITION = (TokenLogprob(1, -0.5, 1, b"a"),)

deltas = st.builds(
    Delta,
    index=st.integers(0, 2),
    text=st.text(max_size=3),
    token_ids=st.lists(st.integers(0, 9), max_size=3).map(tuple),
)
events = st.tuples(st.sampled_from("abc"), deltas | st.just(PromptLogprobs(())) | st.just(Finished(Outcome.STOP)))


def content(pairs: list[tuple[str, GenerationEvent]]) -> dict[object, object]:
    """What each choice of each request gets to see, however it is cut, and all other events in order."""
    texts: dict[tuple[str, int], str] = defaultdict(str)
    tokens: dict[tuple[str, int], list[int]] = defaultdict(list)
    others: dict[str, list[GenerationEvent]] = defaultdict(list)
    for request_id, event in pairs:
        if isinstance(event, Delta):
            texts[request_id, event.index] += event.text
            tokens[request_id, event.index] += event.token_ids
        else:
            others[request_id].append(event)
    return {"texts": dict(texts), "tokens": dict(tokens), "others": dict(others)}


async def drained(buffer: EventBuffer) -> list[tuple[str, GenerationEvent]]:
    taken = await asyncio.wait_for(buffer.take(), 1)
    assert taken is not None
    return taken.events


@given(st.lists(events, min_size=1, max_size=80), st.integers(1, 20))
def test_merging_loses_nothing(pushed: list[tuple[str, GenerationEvent]], limit: int) -> None:
    async def run() -> None:
        buffer = EventBuffer(limit, 10**9)
        for request_id, event in pushed:
            buffer.push(request_id, event)
        taken = await drained(buffer)
        assert content(taken) == content(pushed)
        assert len(taken) + buffer.merged == len(pushed)

    asyncio.run(run())


async def test_a_finish_stays_behind_its_deltas_and_a_reader_in_time_sees_no_merging() -> None:
    buffer = EventBuffer(4, 10**9)
    pushed: list[tuple[str, GenerationEvent]] = [("a", Delta(0, "x", (1,))), ("a", Finished(Outcome.STOP))]
    for request_id, event in pushed:
        buffer.push(request_id, event)
    assert await drained(buffer) == pushed
    assert buffer.merged == 0


async def test_a_sleeping_reader_costs_one_delta_a_choice() -> None:
    buffer = EventBuffer(16, 10**9)
    for step in range(1000):
        for request_id in "abcd":
            buffer.push(request_id, Delta(0, "x", (step,), (POSITION,)))
    taken = await drained(buffer)
    assert len(taken) <= 32
    assert buffer.merged >= 4000 - 32
    assert [
        token for name, event in taken if name == "b" and isinstance(event, Delta) for token in event.token_ids
    ] == [*range(1000)]
    assert all(isinstance(event, Delta) and len(event.logprobs) == len(event.token_ids) for _, event in taken)


async def test_no_merged_delta_outgrows_its_bound() -> None:
    buffer = EventBuffer(16, 10**9)
    for step in range(5 * MAX_MERGED_TOKENS):
        buffer.push("a", Delta(0, "x", (step,)))
    lengths = [len(event.token_ids) for _, event in await drained(buffer) if isinstance(event, Delta)]
    assert sum(lengths) == 5 * MAX_MERGED_TOKENS
    assert max(lengths) <= MAX_MERGED_TOKENS


async def test_over_the_byte_limit_the_buffer_gives_up_and_stays_small() -> None:
    buffer = EventBuffer(16, 20_000)
    for _ in range(10_000):
        buffer.push("a", Finished(Outcome.REJECTED_OVERLOAD))
    assert buffer.overflowed.is_set()
    assert len(await drained(buffer)) <= 50


async def test_merging_makes_room() -> None:
    buffer = EventBuffer(16, 40_000)
    for step in range(800):
        buffer.push("a", Delta(0, "x", (step,)))
    assert not buffer.overflowed.is_set()


async def test_the_newest_state_only() -> None:
    buffer = EventBuffer(16, 10**6)
    buffer.notify(StateNotice(ReplicaState.STALLED, "a"))
    buffer.notify(StateNotice(ReplicaState.SERVING, ""))
    taken = await buffer.take()
    assert taken is not None
    assert taken.notice == StateNotice(ReplicaState.SERVING, "")


async def test_closed_buffers_give_what_waits_and_then_end() -> None:
    buffer = EventBuffer(16, 10**6)
    buffer.push("a", Delta(0, "x", (1,)))
    buffer.close()
    buffer.push("a", Delta(0, "y", (2,)))
    assert await drained(buffer) == [("a", Delta(0, "x", (1,)))]
    assert await buffer.take() is None
    assert await buffer.take() is None


async def test_a_waiting_taker_wakes_once_for_all_of_a_turn() -> None:
    buffer = EventBuffer(64, 10**6)
    waiting = asyncio.create_task(drained(buffer))
    await asyncio.sleep(0)
    for name in "abcdefgh":
        buffer.push(name, Delta(0, "x", (1,)))
    assert len(await waiting) == 8
