"""Sampling options to protobuf and back, with vLLM's defaults for whatever is absent on the wire."""

from dataclasses import replace
from typing import Any

from forerun.inference.v1 import sampling_pb2

from services.common.errors import invalid
from services.common.types import RepetitionDetection, SamplingOptions, StructuredOutput

DEFAULTS = SamplingOptions()

PLAIN_FIELDS = (
    "n",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "ignore_eos",
    "max_tokens",
    "min_tokens",
    "logprobs",
    "prompt_logprobs",
    "detokenize",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "include_stop_str_in_output",
    "thinking_token_budget",
    "stream_interval",
    "skip_reading_prefix_cache",
    "extra_args_json",
    "expert",
    "draft_tokens",
    "profile",
)
"""Optional scalars of the same name and meaning on both sides."""

_LIST_FIELDS = ("stop", "stop_token_ids", "allowed_token_ids", "bad_words", "logprob_token_ids")
"""Lists of the same name; absent and empty are one."""


def valid_text(text: str) -> str:
    """The text with what UTF-8 cannot hold, lone surrogates, replaced by U+FFFD; surrogate pairs are joined."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def sampling_to_proto(options: SamplingOptions) -> sampling_pb2.SamplingParams:
    """The options on the wire; those at their default are left out.

    Raises ``ValueError`` for numbers that the wire cannot hold: validate first.
    """
    message = sampling_pb2.SamplingParams()
    if options.top_k == -1:
        # vLLM's other spelling of "all tokens".
        options = replace(options, top_k=0)
    for name in PLAIN_FIELDS:
        value = getattr(options, name)
        if value is not None and value != getattr(DEFAULTS, name):
            setattr(message, name, valid_text(value) if isinstance(value, str) else value)
    for name in _LIST_FIELDS:
        values = getattr(options, name)
        if values:
            getattr(message, name).extend(valid_text(value) if isinstance(value, str) else value for value in values)
    if options.logit_bias:
        message.logit_bias.update(options.logit_bias)
    if options.structured_output is not None:
        message.structured_output.CopyFrom(_structured_output_to_proto(options.structured_output))
    if options.repetition_detection is not None:
        detection = options.repetition_detection
        message.repetition_detection.max_pattern_size = detection.max_pattern_size
        message.repetition_detection.min_pattern_size = detection.min_pattern_size
        message.repetition_detection.min_count = detection.min_count
        message.repetition_detection.SetInParent()
    return message


def sampling_from_proto(message: sampling_pb2.SamplingParams) -> SamplingOptions:
    """The options, vLLM's defaults for absent ones; not validated.

    Raises ``RequestEndedError`` when the structured output names no constraint, which no option can stand for.
    """
    values: dict[str, Any] = {name: getattr(message, name) for name in PLAIN_FIELDS if message.HasField(name)}  # type: ignore[arg-type]
    values |= {name: tuple(getattr(message, name)) for name in _LIST_FIELDS}
    if message.logit_bias:
        values["logit_bias"] = dict(message.logit_bias)
    if message.HasField("structured_output"):
        values["structured_output"] = _structured_output_from_proto(message.structured_output)
    if message.HasField("repetition_detection"):
        detection = message.repetition_detection
        values["repetition_detection"] = RepetitionDetection(
            detection.max_pattern_size, detection.min_pattern_size, detection.min_count
        )
    return SamplingOptions(**values)


def _structured_output_to_proto(output: StructuredOutput) -> sampling_pb2.StructuredOutput:
    message = sampling_pb2.StructuredOutput(
        disable_any_whitespace=output.disable_any_whitespace,
        disable_additional_properties=output.disable_additional_properties,
        whitespace_pattern=None if output.whitespace_pattern is None else valid_text(output.whitespace_pattern),
    )
    if output.kind == "json_object":
        message.json_object = True
    elif output.kind == "choice":
        message.choice.values.extend(valid_text(choice) for choice in output.choices)
        message.choice.SetInParent()
    else:
        setattr(message, output.kind, valid_text(output.text))
    return message


def _structured_output_from_proto(message: sampling_pb2.StructuredOutput) -> StructuredOutput:
    kind = message.WhichOneof("constraint")
    if kind is None or (kind == "json_object" and not message.json_object):
        raise invalid("sampling.structured_output", "names no constraint; set one, or leave structured_output out")
    return StructuredOutput(
        kind=kind,
        text=getattr(message, kind) if kind not in ("json_object", "choice") else "",
        choices=tuple(message.choice.values) if kind == "choice" else (),
        disable_any_whitespace=message.disable_any_whitespace,
        disable_additional_properties=message.disable_additional_properties,
        whitespace_pattern=message.whitespace_pattern if message.HasField("whitespace_pattern") else None,
    )
