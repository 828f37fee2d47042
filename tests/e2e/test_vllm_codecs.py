"""vLLM's step and set-up messages survive the wire, and nothing else gets in."""

import pickle
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from vllm.sampling_params import SamplingParams, StructuredOutputsParams
from vllm.v1.core.sched.output import CachedRequestData, GrammarOutput, NewRequestData, SchedulerOutput
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheTensor,
    SlidingWindowSpec,
)
from vllm.v1.outputs import LogprobsLists, LogprobsTensors, ModelRunnerOutput
from vllm.v1.worker.worker_base import CompilationTimes

from services.common.vllm_codec import (
    UnsupportedFieldError,
    decode_grammar_output,
    decode_model_runner_output,
    decode_scheduler_output,
    encode_grammar_output,
    encode_model_runner_output,
    encode_scheduler_output,
)
from services.common.vllm_setup_codec import decode_setup, encode_setup

TOKENS = st.lists(st.integers(0, 49_151), max_size=8)
NAMES = st.text(min_size=1, max_size=12)


def step(**fields: Any) -> SchedulerOutput:
    empty: dict[str, Any] = {
        "scheduled_new_reqs": [],
        "scheduled_cached_reqs": CachedRequestData.make_empty(),
        "num_scheduled_tokens": {},
        "total_num_scheduled_tokens": 0,
        "scheduled_spec_decode_tokens": {},
        "scheduled_encoder_inputs": {},
        "finished_req_ids": set(),
        "free_encoder_mm_hashes": [],
    }
    return SchedulerOutput(**empty | fields)


@st.composite
def sampling(draw: st.DrawFn) -> SamplingParams:
    return SamplingParams(
        temperature=draw(st.floats(0, 2)),
        seed=draw(st.none() | st.integers(0, 2**31)),
        top_k=draw(st.integers(0, 100)),
        stop=draw(st.lists(NAMES, max_size=3)),
        logit_bias=draw(st.none() | st.dictionaries(st.integers(0, 99), st.floats(-5, 5), max_size=3)),
        structured_outputs=draw(
            st.none() | st.just(StructuredOutputsParams(regex="a+")) | st.just(StructuredOutputsParams(json="{}"))
        ),
        logprobs=draw(st.none() | st.integers(0, 5)),
    )


@st.composite
def steps(draw: st.DrawFn) -> SchedulerOutput:
    new_ids = draw(st.lists(NAMES, max_size=3, unique=True))
    old_ids = draw(st.lists(NAMES.filter(lambda name: name not in new_ids), max_size=3, unique=True))
    resumed = set(draw(st.lists(st.sampled_from(old_ids), max_size=2))) if old_ids else set()
    scheduled = {request_id: draw(st.integers(1, 9)) for request_id in new_ids + old_ids}
    return step(
        scheduled_new_reqs=[
            NewRequestData(
                req_id=request_id,
                prompt_token_ids=draw(TOKENS),
                mm_features=[],
                sampling_params=draw(sampling()),
                pooling_params=None,
                block_ids=(draw(TOKENS),),
                num_computed_tokens=draw(st.integers(0, 9)),
                lora_request=None,
            )
            for request_id in new_ids
        ],
        scheduled_cached_reqs=CachedRequestData(
            req_ids=old_ids,
            resumed_req_ids=resumed,
            new_token_ids=[draw(TOKENS) for _ in old_ids],
            all_token_ids={request_id: draw(TOKENS) for request_id in resumed},
            new_block_ids=[draw(st.none() | TOKENS.map(lambda ids: (ids,))) for _ in old_ids],
            num_computed_tokens=[draw(st.integers(0, 99)) for _ in old_ids],
            num_output_tokens=[draw(st.integers(0, 99)) for _ in old_ids],
        ),
        num_scheduled_tokens=scheduled,
        total_num_scheduled_tokens=sum(scheduled.values()),
        finished_req_ids=set(draw(st.lists(NAMES, max_size=3))),
        new_block_ids_to_zero=draw(st.none() | TOKENS),
    )


@settings(deadline=None, max_examples=100)
@given(steps())
def test_a_step_survives(output: SchedulerOutput) -> None:
    assert decode_scheduler_output(encode_scheduler_output(output)) == output


def test_a_request_s_whole_text_travels_only_when_it_is_resumed() -> None:
    cached = CachedRequestData(
        req_ids=["a", "b"],
        resumed_req_ids={"b"},
        new_token_ids=[[1], [2]],
        all_token_ids={"a": [9] * 1000, "b": [8] * 10},
        new_block_ids=[None, ([3],)],
        num_computed_tokens=[1000, 9],
        num_output_tokens=[1, 1],
    )
    output = step(scheduled_cached_reqs=cached, num_scheduled_tokens={"a": 1, "b": 1}, total_num_scheduled_tokens=2)
    assert decode_scheduler_output(encode_scheduler_output(output)).scheduled_cached_reqs.all_token_ids == {
        "b": [8] * 10
    }


def test_unsupported_features_are_refused_by_name() -> None:
    with pytest.raises(UnsupportedFieldError, match="encoder inputs, KV connector"):
        encode_scheduler_output(step(scheduled_encoder_inputs={"a": [0]}, kv_connector_metadata=object()))


def test_sampled_tokens_and_log_probabilities_survive() -> None:
    logprobs = LogprobsLists(
        np.array([[1, 2], [3, 4]], dtype=np.int32),
        np.array([[-0.5, -np.inf], [-1.5, -2.5]], dtype=np.float32),
        np.array([1, 7], dtype=np.int64),
    )
    prompt = LogprobsTensors(torch.tensor([[1, 2]]), torch.tensor([[-1.0, -2.0]]), torch.tensor([3]))
    sent = ModelRunnerOutput(
        req_ids=["a", "b"],
        req_id_to_index={"a": 0, "b": 1},
        sampled_token_ids=[[5], []],
        logprobs=logprobs,
        prompt_logprobs_dict={"a": prompt, "b": None},
        num_nans_in_logits={"a": 0},
    )
    received = decode_model_runner_output(encode_model_runner_output(sent))
    assert (received.req_ids, received.req_id_to_index) == (sent.req_ids, sent.req_id_to_index)
    assert received.sampled_token_ids == sent.sampled_token_ids
    assert received.logprobs is not None
    for ours, theirs in zip(received.logprobs[:3], logprobs[:3], strict=True):
        np.testing.assert_array_equal(ours, theirs)
        assert ours.dtype == theirs.dtype
    got = received.prompt_logprobs_dict["a"]
    assert got is not None
    assert torch.equal(got.logprobs, prompt.logprobs)
    assert received.prompt_logprobs_dict["b"] is None


def test_a_grammar_mask_survives_and_may_be_written_to() -> None:
    mask = np.array([[-1, 3], [0, 7]], dtype=np.int32)
    received = decode_grammar_output(encode_grammar_output(GrammarOutput(["a", "b"], mask)))
    np.testing.assert_array_equal(received.grammar_bitmask, mask)
    received.grammar_bitmask[0, 0] = 1
    assert received.structured_output_request_ids == ["a", "b"]


@pytest.mark.parametrize("decode", [decode_scheduler_output, decode_model_runner_output, decode_grammar_output])
@pytest.mark.parametrize(
    "hostile", [b"", b"\xc1", pickle.dumps([1]), msgspec.msgpack.encode({"a": 1}), msgspec.msgpack.encode([1, 2, 3])]
)
def test_anything_else_is_a_decode_error(decode: Any, hostile: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode(hostile)


def test_an_array_of_objects_or_of_the_wrong_size_is_refused() -> None:
    for array in (["|O", [1], b"\0" * 8], ["<i4", [3], b"\0" * 8]):
        with pytest.raises(msgspec.ValidationError):
            decode_grammar_output(msgspec.msgpack.encode([["a"], array, None]))


def test_set_up_values_survive() -> None:
    spec = FullAttentionSpec(block_size=16, num_kv_heads=3, head_size=64, dtype=torch.bfloat16)
    window = SlidingWindowSpec(block_size=16, num_kv_heads=3, head_size=64, dtype=torch.float32, sliding_window=128)
    config = KVCacheConfig(
        num_blocks=8,
        kv_cache_tensors=[KVCacheTensor(size=64, layers=["l.0"], layer_stride=1, block_stride=2)],
        kv_cache_groups=[KVCacheGroupSpec(["l.0"], spec)],
    )
    for value in ({"l.0": spec, "l.1": window}, [config], CompilationTimes(1.0, 2.0), ("generate",), [None, True, 3]):
        assert decode_setup(encode_setup(value)) == value


@pytest.mark.parametrize("value", [object(), {1, 2}, torch.nn.Linear(1, 1), lambda: None])
def test_a_set_up_value_of_another_type_is_not_sent(value: Any) -> None:
    with pytest.raises(TypeError, match="not a set-up type"):
        encode_setup(value)


@pytest.mark.parametrize(
    "hostile", [{"$": "Popen", "args": ["ls"]}, {"$": "dtype", "name": "load"}, {"a": 1}, {"$": ["tuple"]}]
)
def test_a_set_up_value_of_another_type_is_not_built(hostile: Any) -> None:
    with pytest.raises(ValueError, match=r"not a set-up type|no such dtype"):
        decode_setup(msgspec.msgpack.encode(hostile))
