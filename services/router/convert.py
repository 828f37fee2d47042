"""The public API's messages to the router's domain types and back. Pure."""

import json
from collections.abc import Iterable, Mapping

from forerun.inference.v1 import service_pb2 as pb

from services.common import convert
from services.common.errors import invalid
from services.common.ledger import LedgerReplica
from services.common.types import ReplicaInfo
from services.router.replica_session import ReplicaSession
from services.router.request import (
    ChatMessage,
    ChatPrompt,
    Edge,
    Prompt,
    RouterEvent,
    RouterRequest,
    Started,
    TextPrompt,
    TokensPrompt,
)


def request_from_proto(
    message: pb.GenerateRequest, timeout_s: float | None, traceparent: str, tracestate: str, tenant: str
) -> RouterRequest:
    """A request as it came in. Raises ``RequestEndedError`` for what the domain types cannot hold."""
    return RouterRequest(
        prompt=_prompt_from_proto(message),
        sampling=convert.sampling_from_proto(message.sampling),
        edge=Edge.GRPC,
        request_id=message.request_id,
        model=message.model,
        priority=message.priority,
        tenant=tenant,
        final_only=message.final_only,
        timeout_s=timeout_s,
        traceparent=traceparent,
        tracestate=tracestate,
    )


def responses_to_proto(events: Iterable[RouterEvent]) -> list[pb.GenerateResponse]:
    """Events of one batch, in order."""
    return [
        pb.GenerateResponse(started=_started_to_proto(event))
        if isinstance(event, Started)
        else convert.response_to_proto(event)
        for event in events
    ]


def model_info_to_proto(model_names: Iterable[str], info: ReplicaInfo) -> pb.GetModelInfoResponse:
    """What is served."""
    return pb.GetModelInfoResponse(
        model_names=model_names,
        max_model_len_tokens=info.max_model_len,
        vocab_size=info.vocab_size,
        dtype=info.dtype,
        forerun_version=info.forerun_version,
        vllm_version=info.vllm_version,
    )


def replicas_to_proto(
    sessions: Iterable[ReplicaSession], readings: Mapping[str, LedgerReplica], ledger_reachable: bool
) -> pb.ListReplicasResponse:
    """The replicas as the router sees them: block and load figures from the ledger where it has them."""
    replicas = [_replica_to_proto(session, readings.get(session.replica_id)) for session in sessions]
    return pb.ListReplicasResponse(replicas=replicas, ledger_reachable=ledger_reachable)


def _prompt_from_proto(message: pb.GenerateRequest) -> Prompt:
    match message.WhichOneof("prompt"):
        case "text":
            return TextPrompt(message.text)
        case "tokens":
            return TokensPrompt(tuple(message.tokens.ids))
        case "chat":
            return _chat_from_proto(message.chat)
        case _:
            raise invalid("prompt", "is missing; set one of text, tokens, chat")


def _chat_from_proto(chat: pb.ChatPrompt) -> ChatPrompt:
    if not chat.messages:
        raise invalid("chat.messages", "is empty; send at least one message")
    arguments: object = {}
    if chat.HasField("template_arguments_json"):
        try:
            arguments = json.loads(chat.template_arguments_json)
        except ValueError as error:
            raise invalid("chat.template_arguments_json", f"is not JSON ({error})") from None
    if not isinstance(arguments, dict):
        raise invalid("chat.template_arguments_json", "must be a JSON object")
    return ChatPrompt(tuple(ChatMessage(turn.role, turn.content) for turn in chat.messages), arguments)


def _started_to_proto(started: Started) -> pb.Started:
    return pb.Started(
        request_id=started.request_id,
        replica_id=started.replica_id,
        trace_id=started.trace_id,
        prompt_tokens=started.prompt_tokens,
        expert_choice=None if started.expert_choice is None else convert.expert_choice_to_proto(started.expert_choice),
    )


def _replica_to_proto(session: ReplicaSession, reading: LedgerReplica | None) -> pb.Replica:
    info = session.info
    replica = pb.Replica(
        replica_id=session.replica_id,
        address=session.address,
        state=convert.replica_state_to_proto(session.state),
        in_flight_requests=session.in_flight,
    )
    if info is not None:
        replica.total_blocks = info.total_blocks
        replica.running_requests = info.running_requests
        replica.waiting_requests = info.waiting_requests
        replica.pipeline_stages = info.pipeline_stages
        replica.tensor_parallel_ranks = info.tensor_parallel_ranks
    if reading is not None:
        replica.total_blocks = reading.total
        replica.free_blocks = reading.free
        replica.reserved_blocks = reading.reserved
        replica.running_requests = reading.running
        replica.waiting_requests = reading.waiting
    return replica
