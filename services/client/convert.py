"""The public API's messages to the client's types and back. Pure."""

import json
from collections.abc import Sequence

from forerun.inference.v1 import generation_pb2
from forerun.inference.v1 import service_pb2 as pb

from services.client.types import Chat, ChatMessage, ClientEvent, ModelInfo, Replica, ReplicaList, Started
from services.common import convert
from services.common.errors import invalid

Prompt = str | Sequence[int] | Sequence[ChatMessage] | Chat
"""Text, token ids, or a conversation."""


def set_prompt(message: pb.GenerateRequest, prompt: Prompt) -> None:
    """Fills the request's prompt. Raises ``RequestEndedError`` for a prompt that is none of the kinds."""
    if isinstance(prompt, str):
        message.text = convert.valid_text(prompt)
    elif isinstance(prompt, Chat):
        message.chat.CopyFrom(_chat_to_proto(prompt))
    elif messages := [part for part in prompt if isinstance(part, ChatMessage)]:
        message.chat.CopyFrom(_chat_to_proto(Chat(messages)))
    else:
        try:
            message.tokens.CopyFrom(generation_pb2.TokenIds(ids=[part for part in prompt if isinstance(part, int)]))
        except ValueError as error:
            raise invalid("tokens", f"not token ids ({error})") from None


def _chat_to_proto(chat: Chat) -> pb.ChatPrompt:
    messages = [pb.ChatMessage(role=turn.role, content=convert.valid_text(turn.content)) for turn in chat.messages]
    arguments = json.dumps(dict(chat.template_arguments)) if chat.template_arguments else None
    return pb.ChatPrompt(messages=messages, template_arguments_json=arguments)


def event_from_proto(response: pb.GenerateResponse) -> ClientEvent | None:
    """One event; None for a kind that only a newer router knows."""
    if response.HasField("started"):
        started = response.started
        choice = convert.expert_choice_from_proto(started.expert_choice) if started.HasField("expert_choice") else None
        return Started(started.request_id, started.replica_id, started.trace_id, started.prompt_tokens, choice)
    return convert.response_from_proto(response)


def model_info_from_proto(info: pb.GetModelInfoResponse) -> ModelInfo:
    """What a router serves."""
    return ModelInfo(
        model_names=tuple(info.model_names),
        max_model_len=info.max_model_len_tokens,
        vocab_size=info.vocab_size,
        dtype=info.dtype,
        forerun_version=info.forerun_version,
        vllm_version=info.vllm_version,
    )


def replicas_from_proto(response: pb.ListReplicasResponse) -> ReplicaList:
    """The replicas behind a router."""
    replicas = tuple(
        Replica(
            replica_id=replica.replica_id,
            address=replica.address,
            state=convert.replica_state_from_proto(replica.state),
            total_blocks=replica.total_blocks,
            free_blocks=replica.free_blocks,
            reserved_blocks=replica.reserved_blocks,
            in_flight_requests=replica.in_flight_requests,
            running_requests=replica.running_requests,
            waiting_requests=replica.waiting_requests,
            pipeline_stages=replica.pipeline_stages,
            tensor_parallel_ranks=replica.tensor_parallel_ranks,
        )
        for replica in response.replicas
    )
    return ReplicaList(replicas, response.ledger_reachable)
