"""Shared domain types to protobuf and back. Pure: no validation beyond what a type cannot hold (see validation.py).

Floats travel in 32 bits, as the engine computes with them. Text is made valid UTF-8 on the way out.
"""

import math

from forerun.inference.v1 import service_pb2
from forerun.scheduler.v1 import service_pb2 as scheduler_pb2

from services.common.convert_events import (
    delta_from_proto,
    delta_to_proto,
    event_from_proto,
    event_to_proto,
    expert_choice_from_proto,
    expert_choice_to_proto,
    finished_from_proto,
    finished_to_proto,
    prompt_logprobs_from_proto,
    prompt_logprobs_to_proto,
    response_from_proto,
    response_to_proto,
    usage_from_proto,
    usage_to_proto,
)
from services.common.convert_sampling import sampling_from_proto, sampling_to_proto, valid_text
from services.common.expert import Expert
from services.common.types import ReplicaInfo, ReplicaState, RoutedExpert, Submission

__all__ = [
    "delta_from_proto",
    "delta_to_proto",
    "event_from_proto",
    "event_to_proto",
    "expert_choice_from_proto",
    "expert_choice_to_proto",
    "finished_from_proto",
    "finished_to_proto",
    "prompt_logprobs_from_proto",
    "prompt_logprobs_to_proto",
    "replica_info_from_proto",
    "replica_info_to_proto",
    "replica_state_from_proto",
    "replica_state_to_proto",
    "response_from_proto",
    "response_to_proto",
    "sampling_from_proto",
    "sampling_to_proto",
    "submission_from_proto",
    "submission_to_proto",
    "usage_from_proto",
    "usage_to_proto",
    "valid_text",
]

_MAX_UINT32 = 2**32 - 1


def submission_to_proto(submission: Submission) -> scheduler_pb2.Submit:
    """A tokenized request. The time left is rounded up to a millisecond, and never negative."""
    timeout_ms = None
    if submission.timeout_s is not None:
        # Whole milliseconds stay what they are: 129.907 s * 1000 is a little more than 129907.
        timeout_ms = min(max(math.ceil(round(submission.timeout_s * 1e3, 3)), 0), _MAX_UINT32)
    return scheduler_pb2.Submit(
        request_id=submission.request_id,
        prompt_token_ids=submission.prompt_token_ids,
        sampling=sampling_to_proto(submission.sampling),
        priority=submission.priority,
        timeout_ms=timeout_ms,
        traceparent=submission.traceparent,
        tracestate=submission.tracestate,
        final_only=submission.final_only,
        reservation_id=submission.reservation_id,
        reasoning_ended=submission.reasoning_ended,
        tenant=submission.tenant,
        expert=None if submission.expert is None else _routed_to_proto(submission.expert),
    )


def submission_from_proto(submit: scheduler_pb2.Submit) -> Submission:
    """A tokenized request. Raises ``RequestEndedError`` when its structured output names no constraint."""
    return Submission(
        request_id=submit.request_id,
        prompt_token_ids=tuple(submit.prompt_token_ids),
        sampling=sampling_from_proto(submit.sampling),
        priority=submit.priority,
        timeout_s=submit.timeout_ms / 1e3 if submit.HasField("timeout_ms") else None,
        traceparent=submit.traceparent,
        tracestate=submit.tracestate,
        final_only=submit.final_only,
        reservation_id=submit.reservation_id,
        reasoning_ended=submit.reasoning_ended if submit.HasField("reasoning_ended") else None,
        tenant=submit.tenant,
        expert=_routed_from_proto(submit.expert) if submit.HasField("expert") else None,
    )


def _routed_to_proto(routed: RoutedExpert) -> scheduler_pb2.RoutedExpert:
    return scheduler_pb2.RoutedExpert(
        expert=routed.expert,
        first_draft_tokens=routed.first_draft_tokens,
        first_block_only=routed.first_block_only,
    )


def _routed_from_proto(routed: scheduler_pb2.RoutedExpert) -> RoutedExpert | None:
    """None for an expert that only a newer router knows."""
    if routed.expert not in list(Expert):
        return None
    return RoutedExpert(routed.expert, routed.first_draft_tokens, routed.first_block_only)


def replica_info_to_proto(info: ReplicaInfo) -> scheduler_pb2.GetReplicaInfoResponse:
    """What a replica is and how it is."""
    return scheduler_pb2.GetReplicaInfoResponse(
        replica_id=info.replica_id,
        generation=info.generation,
        model_names=info.model_names,
        model=info.model,
        max_model_len_tokens=info.max_model_len,
        vocab_size=info.vocab_size,
        dtype=info.dtype,
        pipeline_stages=info.pipeline_stages,
        tensor_parallel_ranks=info.tensor_parallel_ranks,
        total_blocks=info.total_blocks,
        block_size_tokens=info.block_size,
        max_running_requests=info.max_running_requests,
        max_waiting_requests=info.max_waiting_requests,
        state=replica_state_to_proto(info.state),
        running_requests=info.running_requests,
        waiting_requests=info.waiting_requests,
        forerun_version=info.forerun_version,
        vllm_version=info.vllm_version,
        free_blocks=info.free_blocks,
        experts=info.experts,
        deepest_draft_tokens=info.deepest_draft_tokens,
    )


def replica_info_from_proto(info: scheduler_pb2.GetReplicaInfoResponse) -> ReplicaInfo:
    """What a replica is and how it is."""
    return ReplicaInfo(
        replica_id=info.replica_id,
        generation=info.generation,
        model_names=tuple(info.model_names),
        model=info.model,
        max_model_len=info.max_model_len_tokens,
        vocab_size=info.vocab_size,
        dtype=info.dtype,
        pipeline_stages=info.pipeline_stages,
        tensor_parallel_ranks=info.tensor_parallel_ranks,
        total_blocks=info.total_blocks,
        block_size=info.block_size_tokens,
        max_running_requests=info.max_running_requests,
        max_waiting_requests=info.max_waiting_requests,
        state=replica_state_from_proto(info.state),
        running_requests=info.running_requests,
        waiting_requests=info.waiting_requests,
        forerun_version=info.forerun_version,
        vllm_version=info.vllm_version,
        free_blocks=info.free_blocks,
        experts=tuple(info.experts),
        deepest_draft_tokens=info.deepest_draft_tokens,
    )


def replica_state_to_proto(state: ReplicaState) -> service_pb2.ReplicaState.ValueType:
    """The enum value on the wire."""
    return service_pb2.ReplicaState.Value(f"REPLICA_STATE_{state.name}")


def replica_state_from_proto(value: int) -> ReplicaState:
    """From the wire; a state that only a newer peer knows counts as LOST: it is not known to take requests."""
    return _STATES.get(value, ReplicaState.LOST)


_STATES: dict[int, ReplicaState] = {replica_state_to_proto(state): state for state in ReplicaState}
