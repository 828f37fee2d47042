"""vLLM's per-step messages as typed msgpack: what travels inside a stage's step plans and replies.

Every message has a wire struct with exactly the fields Forerun supports. Decoding is typed, so a hostile or
newer peer gets a decode error, never a foreign object; nothing is ever pickled. A field that is set but not
supported (LoRA, multi-modal input, KV connectors, pooling) raises ``UnsupportedFieldError`` on the sending side,
which fails that step by name instead of silently dropping part of it.

Two independent codecs exist: this one for every step (fast, fixed structs), ``vllm_setup_codec`` for the few
calls that set a worker up (any of vLLM's KV cache dataclasses).
"""

from typing import Any

import msgspec
import numpy as np
import torch
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.output import CachedRequestData, GrammarOutput, NewRequestData, SchedulerOutput
from vllm.v1.outputs import LogprobsLists, LogprobsTensors, ModelRunnerOutput


class UnsupportedFieldError(ValueError):
    """A step uses a vLLM feature that Forerun's stages do not carry."""


class _Array(msgspec.Struct, array_like=True):
    """A numpy array: dtype string, shape, row-major bytes."""

    dtype: str
    shape: list[int]
    data: bytes


class _NewRequest(msgspec.Struct, array_like=True):
    request_id: str
    prompt_token_ids: list[int]
    sampling_params: SamplingParams
    block_ids: list[list[int]]
    num_computed_tokens: int
    prefill_token_ids: list[int] | None
    prompt_is_token_ids: list[bool] | None


class _CachedRequests(msgspec.Struct, array_like=True):
    request_ids: list[str]
    resumed_request_ids: list[str]
    new_token_ids: list[list[int]]
    all_token_ids: dict[str, list[int]]
    new_block_ids: list[list[list[int]] | None]
    num_computed_tokens: list[int]
    num_output_tokens: list[int]


class _Step(msgspec.Struct, array_like=True):
    new: list[_NewRequest]
    cached: _CachedRequests
    num_scheduled_tokens: dict[str, int]
    spec_decode_tokens: dict[str, list[int]]
    finished: list[str]
    preempted: list[str] | None
    has_structured_output: bool
    pending_structured_output: bool
    blocks_to_zero: list[int] | None
    num_spec_tokens_to_schedule: int


class _Grammar(msgspec.Struct, array_like=True):
    request_ids: list[str]
    bitmask: _Array
    num_acceptable_drafts: list[int] | None


class _Logprobs(msgspec.Struct, array_like=True):
    token_ids: _Array
    logprobs: _Array
    ranks: _Array
    cumulative_tokens: list[int] | None


class _Output(msgspec.Struct, array_like=True):
    request_ids: list[str]
    sampled_token_ids: list[list[int]]
    logprobs: _Logprobs | None
    prompt_logprobs: dict[str, _Logprobs | None]
    nans_in_logits: dict[str, int] | None


_encoder = msgspec.msgpack.Encoder(enc_hook=lambda value: _encode_unusual(value))
_step_decoder = msgspec.msgpack.Decoder(_Step)
_grammar_decoder = msgspec.msgpack.Decoder(_Grammar)
_output_decoder = msgspec.msgpack.Decoder(_Output)


def encode_scheduler_output(output: SchedulerOutput) -> bytes:
    """One step's plan. Raises ``UnsupportedFieldError``."""
    _refuse_unsupported(output)
    cached = output.scheduled_cached_reqs
    step = _Step(
        new=[_from_new_request(request) for request in output.scheduled_new_reqs],
        cached=_CachedRequests(
            request_ids=cached.req_ids,
            resumed_request_ids=list(cached.resumed_req_ids),
            new_token_ids=cached.new_token_ids,
            # vLLM repeats a request's whole text whenever it sat out a step, which under micro-batching is every step;
            # only a runner that rebuilds a request after preemption reads it.
            all_token_ids={
                request_id: cached.all_token_ids[request_id]
                for request_id in cached.resumed_req_ids
                if request_id in cached.all_token_ids
            },
            new_block_ids=[None if groups is None else list(groups) for groups in cached.new_block_ids],
            num_computed_tokens=cached.num_computed_tokens,
            num_output_tokens=cached.num_output_tokens,
        ),
        num_scheduled_tokens=output.num_scheduled_tokens,
        spec_decode_tokens=output.scheduled_spec_decode_tokens,
        finished=list(output.finished_req_ids),
        preempted=None if output.preempted_req_ids is None else list(output.preempted_req_ids),
        has_structured_output=output.has_structured_output_requests,
        pending_structured_output=output.pending_structured_output_tokens,
        blocks_to_zero=output.new_block_ids_to_zero,
        num_spec_tokens_to_schedule=output.num_spec_tokens_to_schedule,
    )
    return _encoder.encode(step)


def decode_scheduler_output(data: bytes) -> SchedulerOutput:
    """The plan as vLLM's model runner takes it. Raises ``msgspec.DecodeError`` (or its ``ValidationError``)."""
    step = _step_decoder.decode(data)
    cached = step.cached
    return SchedulerOutput(
        scheduled_new_reqs=[_to_new_request(request) for request in step.new],
        scheduled_cached_reqs=CachedRequestData(
            req_ids=cached.request_ids,
            resumed_req_ids=set(cached.resumed_request_ids),
            new_token_ids=cached.new_token_ids,
            all_token_ids=cached.all_token_ids,
            new_block_ids=[None if groups is None else tuple(groups) for groups in cached.new_block_ids],
            num_computed_tokens=cached.num_computed_tokens,
            num_output_tokens=cached.num_output_tokens,
        ),
        num_scheduled_tokens=step.num_scheduled_tokens,
        total_num_scheduled_tokens=sum(step.num_scheduled_tokens.values()),
        scheduled_spec_decode_tokens=step.spec_decode_tokens,
        scheduled_encoder_inputs={},
        finished_req_ids=set(step.finished),
        free_encoder_mm_hashes=[],
        preempted_req_ids=None if step.preempted is None else set(step.preempted),
        has_structured_output_requests=step.has_structured_output,
        pending_structured_output_tokens=step.pending_structured_output,
        new_block_ids_to_zero=step.blocks_to_zero,
        num_spec_tokens_to_schedule=step.num_spec_tokens_to_schedule,
    )


def encode_grammar_output(grammar: GrammarOutput) -> bytes:
    """The token bitmask of a step's structured-output requests."""
    return _encoder.encode(
        _Grammar(
            request_ids=grammar.structured_output_request_ids,
            bitmask=_from_array(grammar.grammar_bitmask),
            num_acceptable_drafts=grammar.num_acceptable_drafts,
        )
    )


def decode_grammar_output(data: bytes) -> GrammarOutput:
    """Inverse of ``encode_grammar_output``. Raises ``msgspec.DecodeError``."""
    grammar = _grammar_decoder.decode(data)
    return GrammarOutput(
        structured_output_request_ids=grammar.request_ids,
        grammar_bitmask=_to_array(grammar.bitmask),
        num_acceptable_drafts=grammar.num_acceptable_drafts,
    )


def encode_model_runner_output(output: ModelRunnerOutput) -> bytes:
    """What the last stage sampled. Raises ``UnsupportedFieldError``."""
    if output.pooler_output or output.kv_connector_output or output.ec_connector_output or output.sampling_masks:
        raise UnsupportedFieldError("stages carry sampled tokens and log probabilities only")
    return _encoder.encode(
        _Output(
            request_ids=output.req_ids,
            sampled_token_ids=output.sampled_token_ids,
            logprobs=None if output.logprobs is None else _from_logprobs(output.logprobs),
            prompt_logprobs={
                request_id: None if tensors is None else _from_logprobs(tensors.tolists())
                for request_id, tensors in output.prompt_logprobs_dict.items()
            },
            nans_in_logits=output.num_nans_in_logits,
        )
    )


def decode_model_runner_output(data: bytes) -> ModelRunnerOutput:
    """Inverse of ``encode_model_runner_output``. Raises ``msgspec.DecodeError``."""
    output = _output_decoder.decode(data)
    return ModelRunnerOutput(
        req_ids=output.request_ids,
        req_id_to_index={request_id: index for index, request_id in enumerate(output.request_ids)},
        sampled_token_ids=output.sampled_token_ids,
        logprobs=None if output.logprobs is None else _to_logprobs_lists(output.logprobs),
        prompt_logprobs_dict={
            request_id: None if logprobs is None else _to_logprobs_tensors(logprobs)
            for request_id, logprobs in output.prompt_logprobs.items()
        },
        num_nans_in_logits=output.nans_in_logits,
    )


def _refuse_unsupported(output: SchedulerOutput) -> None:
    unsupported = {
        "encoder inputs": output.scheduled_encoder_inputs,
        "KV connector": output.kv_connector_metadata,
        "encoder-cache connector": output.ec_connector_metadata,
        "auxiliary outputs": output.aux_output_connector_metadata,
        "KV block copies": output.kv_cache_block_copies,
        "LoRA": any(request.lora_request for request in output.scheduled_new_reqs),
        "multi-modal input": any(request.mm_features for request in output.scheduled_new_reqs),
        "prompt embeddings": any(request.prompt_embeds is not None for request in output.scheduled_new_reqs),
        "pooling": any(request.pooling_params for request in output.scheduled_new_reqs),
    }
    named = [name for name, value in unsupported.items() if value]
    if named:
        raise UnsupportedFieldError(f"stages do not carry {', '.join(named)}")


def _from_new_request(request: NewRequestData) -> _NewRequest:
    if request.prompt_token_ids is None or request.sampling_params is None:
        raise UnsupportedFieldError("stages need prompt token ids and sampling parameters")
    return _NewRequest(
        request_id=request.req_id,
        prompt_token_ids=request.prompt_token_ids,
        sampling_params=request.sampling_params,
        block_ids=list(request.block_ids),
        num_computed_tokens=request.num_computed_tokens,
        prefill_token_ids=request.prefill_token_ids,
        prompt_is_token_ids=request.prompt_is_token_ids,
    )


def _to_new_request(request: _NewRequest) -> NewRequestData:
    return NewRequestData(
        req_id=request.request_id,
        prompt_token_ids=request.prompt_token_ids,
        mm_features=[],
        sampling_params=request.sampling_params,
        pooling_params=None,
        block_ids=tuple(request.block_ids),
        num_computed_tokens=request.num_computed_tokens,
        lora_request=None,
        prefill_token_ids=request.prefill_token_ids,
        prompt_is_token_ids=request.prompt_is_token_ids,
    )


def _from_array(array: np.ndarray) -> _Array:
    return _Array(array.dtype.str, list(array.shape), np.ascontiguousarray(array).tobytes())


def _to_array(array: _Array) -> np.ndarray:
    dtype = np.dtype(array.dtype)
    if dtype.hasobject:
        raise msgspec.ValidationError("arrays of objects are not allowed")
    try:
        # A copy, since vLLM writes into some of these arrays and the message's bytes are read-only.
        return np.frombuffer(array.data, dtype=dtype).reshape(array.shape).copy()
    except ValueError as error:
        raise msgspec.ValidationError(f"array of {array.dtype}{array.shape}: {error}") from error


def _from_logprobs(logprobs: LogprobsLists) -> _Logprobs:
    return _Logprobs(
        token_ids=_from_array(logprobs.logprob_token_ids),
        logprobs=_from_array(logprobs.logprobs),
        ranks=_from_array(logprobs.sampled_token_ranks),
        cumulative_tokens=logprobs.cu_num_generated_tokens,
    )


def _to_logprobs_lists(logprobs: _Logprobs) -> LogprobsLists:
    return LogprobsLists(
        _to_array(logprobs.token_ids),
        _to_array(logprobs.logprobs),
        _to_array(logprobs.ranks),
        logprobs.cumulative_tokens,
    )


def _to_logprobs_tensors(logprobs: _Logprobs) -> LogprobsTensors:
    return LogprobsTensors(
        torch.from_numpy(_to_array(logprobs.token_ids)),
        torch.from_numpy(_to_array(logprobs.logprobs)),
        torch.from_numpy(_to_array(logprobs.ranks)),
        logprobs.cumulative_tokens,
    )


def _encode_unusual(value: Any) -> Any:
    if isinstance(value, np.integer | np.floating):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise UnsupportedFieldError(f"a step carries a value of type {type(value).__name__}, which stages do not take")
