"""Every bad value is refused with its field and limit named; every value at a limit passes."""

import json
import math
from dataclasses import replace
from typing import Any

import pytest
from forerun.inference.v1 import sampling_pb2, service_pb2
from forerun.scheduler.v1 import service_pb2 as scheduler_pb2
from hypothesis import given
from hypothesis import strategies as st

from services.common.errors import RequestEndedError
from services.common.outcome import Outcome
from services.common.types import RepetitionDetection, SamplingOptions, StructuredOutput
from services.common.validation import (
    effective_max_tokens,
    reject_unknown_fields,
    validate_prompt,
    validate_request_id,
    validate_sampling,
)
from tests.support.domain_strategies import sampling_options

VOCAB = 1000
CONTEXT = 128


def refusal(function: Any, *arguments: Any, **keywords: Any) -> RequestEndedError:
    with pytest.raises(RequestEndedError) as caught:
        function(*arguments, **keywords)
    assert caught.value.outcome is Outcome.REJECTED_INVALID
    assert caught.value.message.startswith(caught.value.field)
    return caught.value


BAD_OPTIONS = [
    ({"n": 0}, "n", "1 to 64"),
    ({"n": 65}, "n", "1 to 64"),
    ({"n": 2, "temperature": 0.0}, "n", "must be 1"),
    ({"temperature": -0.01}, "temperature", "0 to 2"),
    ({"temperature": 2.1}, "temperature", "0 to 2"),
    ({"temperature": math.nan}, "temperature", "nan"),
    ({"temperature": math.inf}, "temperature", "inf"),
    ({"top_p": 0.0}, "top_p", "above 0, at most 1"),
    ({"top_p": 1.01}, "top_p", "above 0, at most 1"),
    ({"top_p": math.nan}, "top_p", "nan"),
    ({"top_k": -2}, "top_k", "0 (all tokens) or more"),
    ({"top_k": 2**31}, "top_k", "0 (all tokens) or more"),
    ({"min_p": -0.1}, "min_p", "0 to 1"),
    ({"min_p": 1.1}, "min_p", "0 to 1"),
    ({"min_p": math.nan}, "min_p", "nan"),
    ({"presence_penalty": 2.1}, "presence_penalty", "-2 to 2"),
    ({"presence_penalty": math.nan}, "presence_penalty", "nan"),
    ({"frequency_penalty": -2.1}, "frequency_penalty", "-2 to 2"),
    ({"frequency_penalty": -math.inf}, "frequency_penalty", "-2 to 2"),
    ({"repetition_penalty": 0.0}, "repetition_penalty", "above 0"),
    ({"repetition_penalty": math.inf}, "repetition_penalty", "finite"),
    ({"repetition_penalty": math.nan}, "repetition_penalty", "finite"),
    ({"seed": 2**63}, "seed", "64 bits"),
    ({"max_tokens": 0}, "max_tokens", f"1 to {CONTEXT}"),
    ({"max_tokens": -5}, "max_tokens", f"1 to {CONTEXT}"),
    ({"max_tokens": CONTEXT + 1}, "max_tokens", f"1 to {CONTEXT}"),
    ({"min_tokens": -1}, "min_tokens", "0 or more"),
    ({"min_tokens": 9, "max_tokens": 8}, "min_tokens", "at most max_tokens, 8"),
    ({"logprobs": 21}, "logprobs", "at most 20"),
    ({"logprobs": -1}, "logprobs", "at most 20"),
    ({"logprobs": -2}, "logprobs", "0 or more"),
    ({"prompt_logprobs": 21}, "prompt_logprobs", "at most 20"),
    ({"logprob_token_ids": (1,) * 129}, "logprob_token_ids", "at most 128"),
    ({"logprob_token_ids": (1, 2), "logprobs": 3}, "logprobs", "must equal"),
    ({"logprob_token_ids": (VOCAB,)}, "logprob_token_ids", "0 to 999"),
    ({"stop": ("",)}, "stop", "empty string"),
    ({"stop": ("x",) * 17}, "stop", "at most 16"),
    ({"stop": ("x" * 1025,)}, "stop", "at most 1024"),
    ({"stop": ("x",), "detokenize": False}, "stop", "detokenize"),
    ({"stop_token_ids": (VOCAB,)}, "stop_token_ids", "0 to 999"),
    ({"stop_token_ids": (-1,)}, "stop_token_ids", "0 to 999"),
    ({"allowed_token_ids": (5, VOCAB)}, "allowed_token_ids", "token id 1000"),
    ({"bad_words": ("a", "")}, "bad_words", "empty string"),
    ({"bad_words": ("a",) * 129}, "bad_words", "at most 128"),
    ({"logit_bias": {VOCAB: 1.0}}, "logit_bias", "0 to 999"),
    ({"logit_bias": {3: math.nan}}, "logit_bias", "finite"),
    ({"logit_bias": {3: 1.0, 4: -math.inf}}, "logit_bias", "token id 4"),
    ({"thinking_token_budget": -1}, "thinking_token_budget", "0 or more"),
    ({"stream_interval": 0}, "stream_interval", "1 or more"),
    ({"repetition_detection": RepetitionDetection(2, 3, 2)}, "repetition_detection.min_pattern_size", "0 to max"),
    ({"repetition_detection": RepetitionDetection(2, 1, 1)}, "repetition_detection.min_count", "2 or more"),
    ({"extra_args_json": "{"}, "extra_args_json", "not JSON"),
    ({"extra_args_json": "[1]"}, "extra_args_json", "JSON object"),
    ({"extra_args_json": '{"a": NaN}'}, "extra_args_json", "NaN"),
    ({"extra_args_json": "[" * 30_000}, "extra_args_json", "nested too deeply"),
    ({"extra_args_json": json.dumps({"a": "x" * 70_000})}, "extra_args_json", "at most 65536"),
    ({"extra_args_json": '{"a": 18446744073709551616}'}, "extra_args_json", "64 bits"),
]


@pytest.mark.parametrize(("changes", "field", "limit"), BAD_OPTIONS, ids=lambda value: str(value)[:40])
def test_bad_options_name_field_and_limit(changes: dict[str, Any], field: str, limit: str) -> None:
    error = refusal(validate_sampling, replace(SamplingOptions(), **changes), VOCAB, CONTEXT)
    assert error.field == f"sampling.{field}"
    assert limit in error.message
    assert len(error.message) < 400


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"n": 64},
        {"temperature": 0.0},
        {"temperature": 2.0, "top_p": 1.0, "top_k": -1, "min_p": 1.0},
        {"presence_penalty": -2.0, "frequency_penalty": 2.0, "repetition_penalty": 2.5},
        {"seed": -(2**63)},
        {"max_tokens": CONTEXT, "min_tokens": CONTEXT},
        {"max_tokens": 1},
        {"logprobs": 0, "prompt_logprobs": 20},
        {"logprob_token_ids": (0, VOCAB - 1), "logprobs": 2},
        {"stop": ("x" * 1024,) * 16, "stop_token_ids": (0, VOCAB - 1)},
        {"bad_words": ("a",) * 128},
        {"logit_bias": {0: -100.0, VOCAB - 1: 100.0}},
        {"repetition_detection": RepetitionDetection(0, 0, 0)},
        {"repetition_detection": RepetitionDetection(4, 0, 2)},
        {"extra_args_json": '{"plugin": {"x": 1}}'},
        {"stream_interval": 1, "thinking_token_budget": 0},
    ],
    ids=lambda value: str(value)[:40],
)
def test_values_at_their_limits_pass(changes: dict[str, Any]) -> None:
    validate_sampling(replace(SamplingOptions(), **changes), VOCAB, CONTEXT)


def test_the_engines_logprob_limit_can_be_raised() -> None:
    options = SamplingOptions(logprobs=VOCAB, prompt_logprobs=-1)
    validate_sampling(options, VOCAB, CONTEXT, max_logprobs=-1)
    assert "at most 5" in refusal(validate_sampling, options, VOCAB, CONTEXT, max_logprobs=5).message


@given(sampling_options)
def test_whatever_arrives_is_accepted_or_refused_by_name(options: SamplingOptions) -> None:
    try:
        validate_sampling(options, VOCAB, CONTEXT)
    except RequestEndedError as error:
        assert error.outcome is Outcome.REJECTED_INVALID
        assert error.field.startswith("sampling.")


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (StructuredOutput("json_schema", "{nope"), "not JSON"),
        (StructuredOutput("json_schema", ""), "not JSON"),
        (StructuredOutput("json_schema", "[1]"), "JSON object"),
        (StructuredOutput("json_schema", '{"minimum": Infinity}'), "Infinity"),
        (StructuredOutput("json_schema", '{"a":' * 65 + "{}" + "}" * 65), "at most 64 levels"),
        (StructuredOutput("json_schema", '{"a":' * 30_000), "nested too deeply"),
        (StructuredOutput("json_schema", '{"a": "' + "x" * 300_000 + '"}'), "characters"),
        (StructuredOutput("structural_tag", "3"), "JSON object"),
        (StructuredOutput("grammar", "  \n"), "empty"),
        (StructuredOutput("regex", "a\x00b"), "NUL"),
        (StructuredOutput("choice"), "1 to 4096"),
        (StructuredOutput("choice", choices=("a",) * 5000), "1 to 4096"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_bad_structured_output_names_its_constraint(output: StructuredOutput, message: str) -> None:
    error = refusal(validate_sampling, SamplingOptions(structured_output=output), VOCAB, CONTEXT)
    assert error.field == f"sampling.structured_output.{output.kind}"
    assert message in error.message


@pytest.mark.parametrize(
    "output",
    [
        StructuredOutput("json_schema", '{"type": "object"}'),
        StructuredOutput("json_schema", "true"),
        StructuredOutput("json_object"),
        StructuredOutput("regex", ""),
        StructuredOutput("choice", choices=("yes", "")),
        StructuredOutput("grammar", 'root ::= "a"'),
        StructuredOutput("structural_tag", '{"type": "structural_tag"}'),
    ],
)
def test_structured_output_passes(output: StructuredOutput) -> None:
    validate_sampling(SamplingOptions(structured_output=output), VOCAB, CONTEXT)


def test_prompt_limits() -> None:
    options = SamplingOptions()
    assert refusal(validate_prompt, (), options, VOCAB, CONTEXT).field == "prompt"
    error = refusal(validate_prompt, (1,) * CONTEXT, options, VOCAB, CONTEXT)
    assert f"has {CONTEXT} tokens, at most {CONTEXT - 1}" in error.message
    validate_prompt((1,) * (CONTEXT - 1), options, VOCAB, CONTEXT)
    for bad in (VOCAB, -1):
        error = refusal(validate_prompt, (1, bad, 2), options, VOCAB, CONTEXT)
        assert f"token id {bad} is outside the vocabulary, 0 to 999" in error.message
    validate_prompt([0, VOCAB - 1], options, VOCAB, CONTEXT)


def test_min_tokens_must_fit_behind_the_prompt() -> None:
    prompt = (1,) * 100
    validate_prompt(prompt, SamplingOptions(min_tokens=28), VOCAB, CONTEXT)
    error = refusal(validate_prompt, prompt, SamplingOptions(min_tokens=29), VOCAB, CONTEXT)
    assert error.field == "sampling.min_tokens"
    assert "only 28 fit" in error.message


@pytest.mark.parametrize(("max_tokens", "expected"), [(None, 28), (5, 5), (28, 28), (128, 28)])
def test_max_tokens_ends_at_the_context(max_tokens: int | None, expected: int) -> None:
    options = SamplingOptions(max_tokens=max_tokens)
    validate_prompt((1,) * 100, options, VOCAB, CONTEXT)
    assert effective_max_tokens(100, options, CONTEXT) == expected


@pytest.mark.parametrize("request_id", ["a", "A-1_b.c:d", "x" * 128])
def test_request_ids_pass(request_id: str) -> None:
    validate_request_id(request_id)


@pytest.mark.parametrize("request_id", ["", "x" * 129, "a b", "a\n", "é", "a/b", "{}", "\x00"])
def test_unsafe_request_ids_are_refused(request_id: str) -> None:
    assert refusal(validate_request_id, request_id).field == "request_id"


def with_unknown_field(message: Any, number: int = 999) -> Any:
    """The message as a newer client would send it."""
    tag = number << 3
    varint = bytes([tag & 0x7F | 0x80, tag >> 7]) if tag > 0x7F else bytes([tag])
    return type(message).FromString(message.SerializeToString() + varint + b"\x01")


def test_unknown_fields_are_refused_at_any_depth() -> None:
    plain = service_pb2.GenerateRequest(text="x", sampling=sampling_pb2.SamplingParams(n=1, logit_bias={1: 0.5}))
    reject_unknown_fields(plain)
    error = refusal(reject_unknown_fields, with_unknown_field(plain))
    assert error.field == "GenerateRequest"
    assert "field number 999" in error.message
    sampling = with_unknown_field(sampling_pb2.SamplingParams(n=1))
    error = refusal(reject_unknown_fields, service_pb2.GenerateRequest(text="x", sampling=sampling))
    assert error.field == "sampling"
    chat = service_pb2.ChatPrompt(messages=[service_pb2.ChatMessage(), with_unknown_field(service_pb2.ChatMessage())])
    error = refusal(reject_unknown_fields, service_pb2.GenerateRequest(chat=chat))
    assert error.field == "chat.messages"
    submit = scheduler_pb2.Submit(sampling=sampling)
    assert refusal(reject_unknown_fields, scheduler_pb2.SessionRequest(submit=submit)).field == "submit.sampling"


@given(st.binary(max_size=60))
def test_unknown_field_check_takes_whatever_parses(content: bytes) -> None:
    try:
        message = service_pb2.GenerateRequest.FromString(content)
    except Exception:  # noqa: BLE001  (what does not parse is not the subject)
        return
    try:
        reject_unknown_fields(message)
    except RequestEndedError as error:
        assert error.outcome is Outcome.REJECTED_INVALID
