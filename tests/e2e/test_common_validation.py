"""What our checks let pass, vLLM's own checks let pass too: nothing fails in the engine that the edge could refuse."""

import math
from dataclasses import fields, replace
from types import SimpleNamespace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from vllm.exceptions import VLLMValidationError

from services.common.errors import RequestEndedError
from services.common.types import RepetitionDetection, SamplingOptions
from services.common.validation import validate_sampling
from services.scheduler.vllm_sampling import to_vllm

VOCAB, CONTEXT = 1000, 128

MODEL: Any = SimpleNamespace(
    max_logprobs=20, max_model_len=CONTEXT, is_diffusion=False, get_vocab_size=lambda: VOCAB, enable_trace_replay=False
)


def at(*limits: float) -> st.SearchStrategy[Any]:
    """Values on, just inside and just outside of limits."""
    near = [value for limit in limits for value in (limit, limit - 1, limit + 1, limit - 0.01, limit + 0.01)]
    return st.sampled_from([*near, math.nan, math.inf, -math.inf])


def whole(*limits: int) -> st.SearchStrategy[int]:
    return st.sampled_from([limit + step for limit in limits for step in (-1, 0, 1)])


token_ids = st.lists(whole(0, VOCAB), max_size=3).map(tuple)
words = st.lists(st.sampled_from(["", "a", "b" * 1025]), max_size=3).map(tuple)

CHANGES: dict[str, st.SearchStrategy[Any]] = {
    "n": whole(1, 64),
    "presence_penalty": at(-2, 2),
    "frequency_penalty": at(-2, 2),
    "repetition_penalty": at(0, 2),
    "temperature": at(0, 1e-5, 2),
    "top_p": at(0, 1),
    "top_k": whole(-1, 0, 2**31),
    "min_p": at(0, 1),
    "seed": st.none() | whole(0, 2**63 - 1, -(2**63)),
    "stop": words,
    "stop_token_ids": token_ids,
    "max_tokens": st.none() | whole(0, CONTEXT),
    "min_tokens": whole(0, CONTEXT),
    "logprobs": st.none() | whole(-1, 20),
    "prompt_logprobs": st.none() | whole(-1, 20),
    "detokenize": st.booleans(),
    "logit_bias": st.none() | st.dictionaries(whole(0, VOCAB), at(0, 100), min_size=1, max_size=2),
    "allowed_token_ids": token_ids,
    "bad_words": words,
    "logprob_token_ids": token_ids,
    "thinking_token_budget": st.none() | whole(0),
    "stream_interval": st.none() | whole(1),
    "expert": st.sampled_from([None, "", "plain", "ngram", "eagle3", "draft_model", "nobody"]),
    "draft_tokens": st.none() | whole(0, 2**31),
    "profile": st.sampled_from([None, "", "speed", "balanced", "efficient", "fast"]),
    "repetition_detection": st.none() | st.builds(RepetitionDetection, whole(0, 4), whole(0, 4), whole(2)),
    "extra_args_json": st.sampled_from([None, "{}", "[]", "{", '{"a": 18446744073709551616}', '{"a": [1, null]}']),
}


def vllm_refuses(options: SamplingOptions) -> bool:
    try:
        to_vllm(options, final_only=False).verify(MODEL, None, None, None)
    except (VLLMValidationError, RequestEndedError):
        return True
    return False


@settings(max_examples=1500, deadline=None)
@given(st.data())
def test_whatever_passes_here_passes_in_the_engine(data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from(sorted(CHANGES)), min_size=1, max_size=3, unique=True))
    options = replace(SamplingOptions(), **{name: data.draw(CHANGES[name], label=name) for name in names})
    try:
        validate_sampling(options, VOCAB, CONTEXT)
    except RequestEndedError:
        return
    assert not vllm_refuses(options), options


def test_every_option_is_tried() -> None:
    untried = {field.name for field in fields(SamplingOptions)} - set(CHANGES)
    # Booleans without a limit, and grammars, which the engine judges.
    assert untried == {
        "ignore_eos",
        "skip_special_tokens",
        "spaces_between_special_tokens",
        "include_stop_str_in_output",
        "skip_reading_prefix_cache",
        "structured_output",
    }
