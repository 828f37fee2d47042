"""The client's messages."""

import pytest
from forerun.inference.v1 import generation_pb2
from forerun.inference.v1 import service_pb2 as pb

from services.client import Chat, ChatMessage, Started
from services.client.convert import event_from_proto, replicas_from_proto, set_prompt
from services.client.deadline import Deadline
from services.common.errors import RequestEndedError
from services.common.types import Delta, ReplicaState


def prompt(value: object) -> pb.GenerateRequest:
    message = pb.GenerateRequest()
    set_prompt(message, value)  # type: ignore[arg-type]
    return message


def test_kinds_of_prompt() -> None:
    assert prompt("hi").text == "hi"
    assert list(prompt([1, 2]).tokens.ids) == [1, 2]
    assert prompt([]).WhichOneof("prompt") == "tokens"
    assert prompt([ChatMessage("user", "hi")]).chat.messages[0].content == "hi"
    chat = prompt(Chat([ChatMessage("user", "hi")], {"a": True})).chat
    assert chat.template_arguments_json == '{"a": true}'


def test_text_that_utf8_cannot_hold_is_mended() -> None:
    assert prompt("a\ud83d\ude42b\ud800").text == "a🙂b\ufffd"


@pytest.mark.parametrize("ids", [[-1], [2**32]])
def test_numbers_that_are_no_token_ids(ids: list[int]) -> None:
    with pytest.raises(RequestEndedError) as caught:
        prompt(ids)
    assert caught.value.field == "tokens"


def test_events() -> None:
    started = pb.Started(request_id="x", replica_id="r0", trace_id="ab", prompt_tokens=3)
    assert event_from_proto(pb.GenerateResponse(started=started)) == Started("x", "r0", "ab", 3)
    delta = generation_pb2.Delta(index=1, text="a", token_ids=[4])
    assert event_from_proto(pb.GenerateResponse(delta=delta)) == Delta(1, "a", (4,))
    assert event_from_proto(pb.GenerateResponse()) is None


def test_replicas() -> None:
    replica = pb.Replica(replica_id="r0", state=pb.REPLICA_STATE_DRAINING, free_blocks=5)
    found = replicas_from_proto(pb.ListReplicasResponse(replicas=[replica], ledger_reachable=True))
    assert (found.replicas[0].state, found.replicas[0].free_blocks) == (ReplicaState.DRAINING, 5)
    assert found.ledger_reachable


def test_a_deadline_counts_down_and_cuts_waits() -> None:
    assert Deadline(None).remaining_s() is None
    assert Deadline(None).cut(9.0) == 9.0
    over = Deadline(0.0)
    assert over.remaining_s() == 0.0
    assert over.cut(9.0) == 0.0
