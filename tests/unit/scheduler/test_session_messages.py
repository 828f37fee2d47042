"""Batches stay under the message limit and lose nothing."""

from hypothesis import given
from hypothesis import strategies as st

from services.common.convert import event_from_proto
from services.common.types import Delta, GenerationEvent, ReplicaState, TokenLogprob
from services.scheduler.convert import MESSAGE_ROOM, outbound_messages
from services.scheduler.event_buffer import Outbound, StateNotice
from tests.support.domain_strategies import events

pairs = st.lists(st.tuples(st.sampled_from(["a", "b"]), events), max_size=10)


def received(outbound: Outbound, limit: int) -> list[tuple[str, GenerationEvent | None]]:
    messages = list(outbound_messages(outbound, limit))
    return [(event.request_id, event_from_proto(event)) for message in messages for event in message.events.events]


@given(pairs)
def test_one_message_holds_a_whole_step(pushed: list[tuple[str, GenerationEvent]]) -> None:
    outbound = Outbound(events=pushed)
    assert len(list(outbound_messages(outbound, 2**24))) == bool(pushed)
    assert received(outbound, 2**24) == pushed


def test_the_notice_goes_first() -> None:
    outbound = Outbound(StateNotice(ReplicaState.LOST, "dead"), [("a", Delta(0, "x", (1,)))])
    first, second = outbound_messages(outbound, 2**20)
    assert first.state.reason == "dead"
    assert len(second.events.events) == 1


def test_many_events_make_several_messages() -> None:
    outbound = Outbound(events=[("a", Delta(0, "x" * 100, (step,))) for step in range(100)])
    messages = list(outbound_messages(outbound, 2000))
    assert len(messages) > 5
    assert all(message.ByteSize() <= 2000 for message in messages)
    assert [event.delta.token_ids[0] for message in messages for event in message.events.events] == [*range(100)]


def test_a_delta_too_large_for_a_message_is_split() -> None:
    position = tuple(TokenLogprob(id_, -1.0, id_ + 1, b"token") for id_ in range(20))
    delta = Delta(1, "text", tuple(range(64)), (position,) * 64)
    outbound = Outbound(events=[("a", delta)])
    messages = list(outbound_messages(outbound, 4000))
    assert all(message.ByteSize() <= 4000 for message in messages)
    parts = [event for _, event in received(outbound, 4000) if isinstance(event, Delta)]
    assert "".join(part.text for part in parts) == "text"
    assert [id_ for part in parts for id_ in part.token_ids] == [*range(64)]
    assert sum(len(part.logprobs) for part in parts) == 64
    assert {part.index for part in parts} == {1}
    assert MESSAGE_ROOM < 1
