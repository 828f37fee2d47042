"""Public messages to the router's types and back."""

import pytest
from forerun.inference.v1 import generation_pb2, sampling_pb2
from forerun.inference.v1 import service_pb2 as pb

from services.common.errors import RequestEndedError
from services.common.types import Delta, Finished, ReplicaState
from services.router import convert
from services.router.request import ChatMessage, ChatPrompt, Edge, Started, TextPrompt, TokensPrompt
from tests.support.router_fakes import FakeSession, delta, ledger_replica, replica_info, stopped


def read(**fields: object) -> object:
    message = pb.GenerateRequest(**fields)  # type: ignore[arg-type]
    return convert.request_from_proto(message, 5.0, "parent", "state", "tenant")


def test_a_request_with_everything() -> None:
    request = convert.request_from_proto(
        pb.GenerateRequest(
            request_id="x",
            model="tiny",
            tokens=generation_pb2.TokenIds(ids=[1, 2]),
            sampling=sampling_pb2.SamplingParams(max_tokens=3, temperature=0.0),
            priority=-2,
            final_only=True,
        ),
        5.0,
        "parent",
        "state",
        "tenant",
    )
    assert request.prompt == TokensPrompt((1, 2))
    assert (request.request_id, request.model, request.priority, request.final_only) == ("x", "tiny", -2, True)
    assert (request.sampling.max_tokens, request.sampling.temperature) == (3, 0.0)
    assert (request.timeout_s, request.traceparent, request.tracestate) == (5.0, "parent", "state")
    assert (request.edge, request.tenant) == (Edge.GRPC, "tenant")


def test_the_three_kinds_of_prompt() -> None:
    chat = pb.ChatPrompt(messages=[pb.ChatMessage(role="user", content="hi")], template_arguments_json='{"a": 1}')
    assert read(text="").prompt == TextPrompt("")  # type: ignore[attr-defined]
    assert read(chat=chat).prompt == ChatPrompt((ChatMessage("user", "hi"),), {"a": 1})  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({}, "prompt"),
        ({"chat": pb.ChatPrompt()}, "chat.messages"),
        (
            {"chat": pb.ChatPrompt(messages=[pb.ChatMessage()], template_arguments_json="[1]")},
            "chat.template_arguments_json",
        ),
        (
            {"chat": pb.ChatPrompt(messages=[pb.ChatMessage()], template_arguments_json="{")},
            "chat.template_arguments_json",
        ),
    ],
)
def test_what_cannot_be_read_names_its_field(fields: dict[str, object], field: str) -> None:
    with pytest.raises(RequestEndedError) as caught:
        read(**fields)
    assert caught.value.field == field


def test_events_keep_their_order() -> None:
    responses = convert.responses_to_proto([Started("x", "r0", "ab", 3), delta("a"), stopped()])
    assert [response.WhichOneof("event") for response in responses] == ["started", "delta", "finished"]
    assert responses[0].started == pb.Started(request_id="x", replica_id="r0", trace_id="ab", prompt_tokens=3)
    assert isinstance(delta("a"), Delta)
    assert isinstance(stopped(), Finished)


def test_replicas_take_their_load_from_the_ledger_where_it_has_them() -> None:
    sessions = [FakeSession("r0"), FakeSession("r1", state=ReplicaState.LOST)]
    readings = {"r0": ledger_replica("r0", total=90, free=40, reserved=7, running=3, waiting=2)}
    response = convert.replicas_to_proto(sessions, readings, True)  # type: ignore[arg-type]
    first, second = response.replicas
    assert (first.total_blocks, first.free_blocks, first.reserved_blocks) == (90, 40, 7)
    assert (first.running_requests, first.waiting_requests) == (3, 2)
    assert (second.total_blocks, second.state) == (100, pb.REPLICA_STATE_LOST)
    assert response.ledger_reachable


def test_model_info() -> None:
    response = convert.model_info_to_proto(["tiny"], replica_info("r0"))
    assert (list(response.model_names), response.max_model_len_tokens, response.vocab_size) == (["tiny"], 256, 1000)
