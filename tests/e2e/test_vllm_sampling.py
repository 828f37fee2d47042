"""Sampling options survive the way into vLLM's parameters and back; what vLLM refuses names its field."""

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from vllm.sampling_params import RequestOutputKind, SamplingParams, StructuredOutputsParams

from services.common.errors import RequestEndedError
from services.common.types import RepetitionDetection, SamplingOptions, StructuredOutput
from services.scheduler.vllm_sampling import from_vllm, to_vllm

token_ids = st.lists(st.integers(0, 49151), unique=True, max_size=4).map(tuple)
words = st.lists(st.text(min_size=1, max_size=8), unique=True, max_size=3).map(tuple)
json_values = st.recursive(st.none() | st.booleans() | st.integers(-100, 100) | st.text(max_size=5), st.lists)

structured_outputs = st.one_of(
    st.builds(
        StructuredOutput,
        kind=st.sampled_from(["json_schema", "regex", "grammar", "structural_tag"]),
        text=st.text(min_size=1, max_size=20),
        disable_any_whitespace=st.booleans(),
        disable_additional_properties=st.booleans(),
        whitespace_pattern=st.none() | st.text(max_size=5),
    ),
    st.builds(StructuredOutput, kind=st.just("json_object")),
    st.builds(StructuredOutput, kind=st.just("choice"), choices=words.filter(bool)),
)


@st.composite
def legal_options(draw: st.DrawFn) -> SamplingOptions:
    """Options that vLLM neither refuses nor rewrites."""
    max_tokens = draw(st.none() | st.integers(1, 1000))
    return SamplingOptions(
        n=draw(st.integers(1, 8)),
        presence_penalty=draw(st.floats(-2, 2)),
        frequency_penalty=draw(st.floats(-2, 2)),
        repetition_penalty=draw(st.floats(0.1, 2)),
        temperature=draw(st.floats(0.01, 2)),
        top_p=draw(st.floats(0.01, 1)),
        top_k=draw(st.integers(0, 100)),
        min_p=draw(st.floats(0, 1)),
        seed=draw(st.none() | st.integers(0, 2**63 - 1)),
        stop=draw(words),
        stop_token_ids=draw(token_ids),
        ignore_eos=draw(st.booleans()),
        max_tokens=max_tokens,
        min_tokens=draw(st.integers(0, max_tokens or 10)),
        logprobs=draw(st.none() | st.integers(0, 20)),
        prompt_logprobs=draw(st.none() | st.integers(0, 20)),
        skip_special_tokens=draw(st.booleans()),
        spaces_between_special_tokens=draw(st.booleans()),
        include_stop_str_in_output=draw(st.booleans()),
        structured_output=draw(st.none() | structured_outputs),
        logit_bias=draw(st.none() | st.dictionaries(st.integers(0, 100), st.floats(-5, 5), min_size=1, max_size=3)),
        allowed_token_ids=draw(token_ids),
        bad_words=draw(words),
        logprob_token_ids=draw(token_ids),
        thinking_token_budget=draw(st.none() | st.integers(0, 1000)),
        stream_interval=draw(st.none() | st.integers(1, 10)),
        skip_reading_prefix_cache=draw(st.booleans()),
        repetition_detection=draw(st.none() | st.just(RepetitionDetection(8, 2, 3))),
        extra_args_json=draw(
            st.none() | st.dictionaries(st.text(max_size=4), json_values, min_size=1, max_size=2).map(json.dumps)
        ),
    )


@given(legal_options(), st.booleans())
@settings(deadline=None)
def test_there_and_back(options: SamplingOptions, final_only: bool) -> None:
    params = to_vllm(options, final_only=final_only)
    assert params.output_kind is (RequestOutputKind.FINAL_ONLY if final_only else RequestOutputKind.DELTA)
    assert from_vllm(params) == options
    # vLLM's own clone is what the engine sees.
    assert from_vllm(params.clone()) == options


def test_defaults_are_vllms_own() -> None:
    ours = to_vllm(SamplingOptions(), final_only=False)
    theirs = SamplingParams(max_tokens=None, output_kind=RequestOutputKind.DELTA)
    for field in SamplingParams.__struct_fields__:
        if field != "skip_clone":
            assert getattr(ours, field) == getattr(theirs, field), field


def test_every_option_has_its_place() -> None:
    taken = {field.name for field in dataclasses.fields(SamplingOptions)}
    renamed = {"structured_output": "structured_outputs", "extra_args_json": "extra_args"}
    renamed |= dict.fromkeys(("expert", "draft_tokens", "profile"), "extra_args")
    assert {renamed.get(name, name) for name in taken} <= set(SamplingParams.__struct_fields__)


def test_the_options_of_speculation_travel_among_the_extra_arguments() -> None:
    options = SamplingOptions(expert="ngram", draft_tokens=3, profile="balanced", extra_args_json='{"other": 1}')
    params = to_vllm(options, final_only=False)
    assert params.extra_args == {
        "other": 1,
        "forerun_expert": "ngram",
        "forerun_draft_tokens": 3,
        "forerun_profile": "balanced",
    }
    back = from_vllm(params)
    names = ("expert", "draft_tokens", "profile", "extra_args_json")
    assert [getattr(back, name) for name in names] == [getattr(options, name) for name in names]
    assert from_vllm(to_vllm(SamplingOptions(draft_tokens=0), final_only=False)).draft_tokens == 0


@pytest.mark.parametrize(
    ("extra", "field"),
    [
        ({"forerun_expert": 3}, "sampling.expert"),
        ({"forerun_profile": ["speed"]}, "sampling.profile"),
        ({"forerun_draft_tokens": "many"}, "sampling.draft_tokens"),
        ({"forerun_draft_tokens": True}, "sampling.draft_tokens"),
    ],
)
def test_wishes_of_the_wrong_kind_are_refused(extra: dict[str, object], field: str) -> None:
    with pytest.raises(RequestEndedError) as refused:
        from_vllm(SamplingParams(extra_args=extra))
    assert refused.value.field == field


@pytest.mark.parametrize("name", ["temperature", "top_p"])
def test_greedy_requests_are_normalised_as_vllm_does(name: str) -> None:
    options = SamplingOptions(temperature=0.0, top_p=0.5, top_k=5, min_p=0.1)
    back = from_vllm(to_vllm(options, final_only=False))
    assert (back.temperature, back.top_p, back.top_k, back.min_p) == (0.0, 1.0, 0, 0.0)


def test_a_schema_given_as_an_object_travels_as_text() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    params = SamplingParams(structured_outputs=StructuredOutputsParams(json=schema))
    output = from_vllm(params).structured_output
    assert output is not None
    assert json.loads(output.text) == schema


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"temperature": -1.0}, "sampling.temperature"),
        ({"top_p": 0.0}, "sampling.top_p"),
        ({"presence_penalty": 9.0}, "sampling.presence_penalty"),
        ({"max_tokens": 0}, "sampling.max_tokens"),
        ({"min_tokens": 5, "max_tokens": 2}, "sampling.min_tokens"),
        ({"stop": ("",)}, "sampling.stop"),
        ({"temperature": 0.0, "n": 2}, "sampling.n"),
    ],
)
def test_what_vllm_refuses_names_its_field(values: dict[str, Any], field: str) -> None:
    with pytest.raises(RequestEndedError) as caught:
        to_vllm(SamplingOptions(**values), final_only=False)
    assert caught.value.field == field


def test_parameters_that_a_replica_does_not_take() -> None:
    with pytest.raises(RequestEndedError, match="trace_decode_token_ids"):
        from_vllm(SamplingParams(trace_decode_token_ids=[1]))
    with pytest.raises(RequestEndedError, match="extra_args"):
        from_vllm(SamplingParams(extra_args={"a": {1, 2}}))
