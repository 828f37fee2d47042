"""Sampling options to vLLM's ``SamplingParams`` and back; the router's HTTP edge needs the way back.

Relies on (vLLM 0.32): the fields of ``SamplingParams`` and ``StructuredOutputsParams`` by name.
"""

import json
import re
from dataclasses import astuple
from typing import Any, Literal

from vllm.exceptions import VLLMClientError
from vllm.sampling_params import (
    RepetitionDetectionParams,
    RequestOutputKind,
    SamplingParams,
    StructuredOutputsParams,
)

from services.common.convert_sampling import PLAIN_FIELDS
from services.common.errors import RequestEndedError, invalid
from services.common.types import RepetitionDetection, RoutedExpert, SamplingOptions, StructuredOutput

_Kind = Literal["json_schema", "json_object", "regex", "choice", "grammar", "structural_tag"]

EXPERT_ARG = "forerun_expert"
DRAFT_TOKENS_ARG = "forerun_draft_tokens"
PROFILE_ARG = "forerun_profile"
"""Keys of ``extra_args``, which vLLM hands through, for the options that are Forerun's own."""

ROUTED_ARG = "forerun_routed"
"""Key of what the router chose, a ``RoutedExpert``'s fields in order; no client can set it."""

_OURS = {"expert": EXPERT_ARG, "draft_tokens": DRAFT_TOKENS_ARG, "profile": PROFILE_ARG}

_SAME = tuple(name for name in PLAIN_FIELDS if name not in ("extra_args_json", *_OURS))
"""Same name, type and meaning on both sides."""

_LISTS = ("stop", "stop_token_ids", "bad_words")
"""Lists there, tuples here; empty is the default."""

_OPTIONAL_LISTS = ("allowed_token_ids", "logprob_token_ids")
"""Lists there or None, tuples here."""

_FIELDS = (*_SAME, *_LISTS, *_OPTIONAL_LISTS, "logit_bias", "extra_args", "repetition_detection")

_UNSUPPORTED = ("prompt_logprob_token_ids", "prompt_logprob_start", "trace_decode_token_ids")
"""What vLLM's own server takes and a replica does not: in-process debugging and scoring."""

_CONSTRAINTS: dict[_Kind, str] = {
    "json_schema": "json",
    "json_object": "json_object",
    "regex": "regex",
    "choice": "choice",
    "grammar": "grammar",
    "structural_tag": "structural_tag",
}
"""Our kind of constraint to vLLM's field."""


_NAMES = re.compile("|".join((r"^n\b", *(rf"\b{name}\b" for name in _FIELDS if name != "n"))))
"""Finds the first option that a message of vLLM's names; a lone n anywhere but at its start may be anything."""


def to_vllm(
    options: SamplingOptions, *, final_only: bool, max_tokens: int | None = None, routed: RoutedExpert | None = None
) -> SamplingParams:
    """Parameters for one request, streamed as deltas or whole at the end.

    Args:
        options: validated; ``max_tokens`` of the argument, when given, replaces theirs.
        final_only: see above.
        max_tokens: see ``options``.
        routed: what the router chose.

    Raises:
        RequestEndedError: vLLM refuses a value.
    """
    values: dict[str, Any] = {name: getattr(options, name) for name in _SAME}
    values |= {name: list(getattr(options, name)) for name in _LISTS}
    values |= {name: list(getattr(options, name)) or None for name in _OPTIONAL_LISTS}
    if max_tokens is not None:
        values["max_tokens"] = max_tokens
    try:
        return SamplingParams(
            **values,
            output_kind=RequestOutputKind.FINAL_ONLY if final_only else RequestOutputKind.DELTA,
            logit_bias=dict(options.logit_bias) if options.logit_bias else None,
            extra_args=_extra_args(options, routed),
            structured_outputs=_structured_to_vllm(options.structured_output),
            repetition_detection=_repetition_to_vllm(options.repetition_detection),
            # Made for this request alone: vLLM need not copy it deeply.
            skip_clone=True,
        )
    except (VLLMClientError, ValueError, TypeError) as error:
        raise refusal(error, options) from error


def from_vllm(params: SamplingParams) -> SamplingOptions:
    """The options that ``params`` stand for; how output is cut into pieces (``output_kind``) is not among them.

    Raises ``RequestEndedError`` for parameters that a replica does not take.
    """
    for name in _UNSUPPORTED:
        if getattr(params, name) is not None:
            raise invalid(f"sampling.{name}", "is not supported; leave it out")
    values: dict[str, Any] = {name: getattr(params, name) for name in _SAME}
    values |= {name: tuple(getattr(params, name) or ()) for name in (*_LISTS, *_OPTIONAL_LISTS)}
    return SamplingOptions(
        **values,
        logit_bias=dict(params.logit_bias) if params.logit_bias else None,
        **_from_extra_args(params.extra_args),
        structured_output=_structured_from_vllm(params.structured_outputs),
        repetition_detection=_repetition_from_vllm(params.repetition_detection),
    )


def refusal(error: Exception, options: SamplingOptions) -> RequestEndedError:
    """vLLM's complaint about a request as ours, with the field where it can be known."""
    return invalid(_field_of(error, options), error.args[0] if error.args else str(error))


def _field_of(error: Exception, options: SamplingOptions) -> str:
    if parameter := getattr(error, "parameter", None):
        return f"sampling.{parameter}"
    message = str(error)
    if named := _NAMES.search(message):
        return f"sampling.{named[0]}"
    if options.structured_output is not None:
        return f"sampling.structured_output.{options.structured_output.kind}"
    return "prompt" if "prompt" in message else "sampling"


def _structured_to_vllm(output: StructuredOutput | None) -> StructuredOutputsParams | None:
    if output is None:
        return None
    constraint: Any = output.text
    if output.kind == "json_object":
        constraint = True
    elif output.kind == "choice":
        constraint = list(output.choices)
    return StructuredOutputsParams(
        **{_CONSTRAINTS[output.kind]: constraint},
        disable_any_whitespace=output.disable_any_whitespace,
        disable_additional_properties=output.disable_additional_properties,
        whitespace_pattern=output.whitespace_pattern,
    )


def _structured_from_vllm(params: StructuredOutputsParams | None) -> StructuredOutput | None:
    if params is None:
        return None
    kind, constraint = next(
        ((kind, value) for kind, name in _CONSTRAINTS.items() if (value := getattr(params, name)) is not None),
        (None, None),
    )
    if kind is None or constraint is False:
        raise invalid("sampling.structured_output", "names no constraint; set one, or leave structured_output out")
    text = constraint if isinstance(constraint, str) else ""
    if isinstance(constraint, dict):
        text = json.dumps(constraint)
    return StructuredOutput(
        kind=kind,
        text=text,
        choices=tuple(constraint) if isinstance(constraint, list) else (),
        disable_any_whitespace=params.disable_any_whitespace,
        disable_additional_properties=params.disable_additional_properties,
        whitespace_pattern=params.whitespace_pattern,
    )


def _repetition_to_vllm(detection: RepetitionDetection | None) -> RepetitionDetectionParams | None:
    if detection is None:
        return None
    return RepetitionDetectionParams(
        max_pattern_size=detection.max_pattern_size,
        min_pattern_size=detection.min_pattern_size,
        min_count=detection.min_count,
    )


def _repetition_from_vllm(params: RepetitionDetectionParams | None) -> RepetitionDetection | None:
    if params is None:
        return None
    return RepetitionDetection(params.max_pattern_size, params.min_pattern_size, params.min_count)


def _extra_args(options: SamplingOptions, routed: RoutedExpert | None) -> dict[str, Any] | None:
    extra = json.loads(options.extra_args_json) if options.extra_args_json else {}
    extra |= {key: value for name, key in _OURS.items() if (value := getattr(options, name)) is not None}
    if routed is not None:
        extra[ROUTED_ARG] = list(astuple(routed))
    return extra or None


def _from_extra_args(extra_args: dict[str, Any] | None) -> dict[str, Any]:
    """The options that are in there, and whatever else is as JSON."""
    extra = dict(extra_args or {})
    ours = {name: extra.pop(key, None) for name, key in _OURS.items()}
    for name in ("expert", "profile"):
        if ours[name] is not None and not isinstance(ours[name], str):
            raise invalid(f"sampling.{name}", f"must be a word, not {ours[name]!r}")
    tokens = ours["draft_tokens"]
    if tokens is not None and (isinstance(tokens, bool) or not isinstance(tokens, int)):
        raise invalid("sampling.draft_tokens", f"must be a whole number, not {tokens!r}")
    try:
        return {"extra_args_json": json.dumps(extra, allow_nan=False) if extra else None, **ours}
    except (TypeError, ValueError) as error:
        raise invalid("sampling.extra_args_json", f"must be JSON values: {error}") from None
