"""A session's messages to protobuf. Pure; the parts they are made of are in ``services.common.convert``."""

from collections.abc import Iterator, Sequence

from forerun.scheduler.v1 import service_pb2

from services.common.convert import delta_to_proto, event_to_proto, replica_info_to_proto, replica_state_to_proto
from services.common.types import Delta, GenerationEvent, ReplicaInfo
from services.scheduler.event_buffer import Outbound, StateNotice

MESSAGE_ROOM = 0.9
"""Share of the message limit that a batch may fill, so that framing never tips it over."""

Events = Sequence[tuple[str, GenerationEvent]]
"""Request ids and what happened, in order."""


def welcome(info: ReplicaInfo) -> service_pb2.SessionResponse:
    """The answer to hello."""
    return service_pb2.SessionResponse(welcome=service_pb2.Welcome(replica=replica_info_to_proto(info)))


def state_change(notice: StateNotice) -> service_pb2.SessionResponse:
    """The replica's state changed."""
    return service_pb2.SessionResponse(
        state=service_pb2.StateChange(state=replica_state_to_proto(notice.state), reason=notice.reason)
    )


def outbound_messages(outbound: Outbound, max_message_bytes: int) -> Iterator[service_pb2.SessionResponse]:
    """As few messages as fit under the limit: one, as a rule. A delta too large for a message is split."""
    if outbound.notice is not None:
        yield state_change(outbound.notice)
    if not outbound.events:
        return
    limit = int(max_message_bytes * MESSAGE_ROOM)
    whole = _whole(outbound.events)
    if whole.ByteSize() <= limit:
        yield whole
    else:
        yield from _parts(outbound.events, limit)


def _whole(events: Events) -> service_pb2.SessionResponse:
    # Runs once a token: built in place, since protobuf copies every finished message that is put into another one.
    response = service_pb2.SessionResponse()
    add = response.events.events.add
    for request_id, event in events:
        if isinstance(event, Delta):
            add(request_id=request_id, delta=delta_to_proto(event))
        else:
            add().CopyFrom(event_to_proto(request_id, event))
    return response


def _parts(events: Events, limit: int) -> Iterator[service_pb2.SessionResponse]:
    batch: list[service_pb2.RequestEvent] = []
    batch_bytes = 0
    for request_id, event in events:
        for message, size in _event_messages(request_id, event, limit):
            if batch and batch_bytes + size > limit:
                yield _batch(batch)
                batch, batch_bytes = [], 0
            batch.append(message)
            batch_bytes += size
    yield _batch(batch)


def _event_messages(
    request_id: str, event: GenerationEvent, limit: int
) -> Iterator[tuple[service_pb2.RequestEvent, int]]:
    message = event_to_proto(request_id, event)
    size = message.ByteSize()
    if size > limit and isinstance(event, Delta) and len(event.token_ids) > 1:
        for half in _halves(event):
            yield from _event_messages(request_id, half, limit)
    else:
        yield message, size


def _halves(delta: Delta) -> tuple[Delta, Delta]:
    middle = len(delta.token_ids) // 2
    return (
        Delta(delta.index, delta.text, delta.token_ids[:middle], delta.logprobs[:middle]),
        Delta(delta.index, "", delta.token_ids[middle:], delta.logprobs[middle:]),
    )


def _batch(events: list[service_pb2.RequestEvent]) -> service_pb2.SessionResponse:
    return service_pb2.SessionResponse(events=service_pb2.EventBatch(events=events))
