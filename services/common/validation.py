"""What a request may ask for; every refusal names the field, the limit and the value at fault.

The limits are vLLM's own, so that the gRPC and the HTTP edge refuse alike and nothing that passes here fails in
the engine, except for what only the engine can judge (whether a grammar compiles, whether an option works with
its speculation method).
"""

import math
import re
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from services.common.errors import invalid
from services.common.expert import Expert
from services.common.expert_profiles import PROFILES
from services.common.types import RepetitionDetection, SamplingOptions
from services.common.validation_grammar import parse_json, validate_structured_output

MAX_CHOICES = 64
MAX_STOP_STRINGS = 16
MAX_STOP_CHARACTERS = 1024
MAX_LOGPROBS = 20
"""vLLM's default for ``max_logprobs``."""
MAX_LOGPROB_TOKEN_IDS = 128
MAX_BAD_WORDS = 128
MAX_TEMPERATURE = 2.0
GREEDY_BELOW = 1e-5
"""vLLM samples greedily below this temperature."""
OWN_ARGS_PREFIX = "forerun_"
"""Of the keys in vLLM's ``extra_args`` under which Forerun hands its own options to the engine core."""

MAX_EXTRA_ARGS_CHARACTERS = 64 * 2**10

REQUEST_ID_PATTERN = re.compile(r"[A-Za-z0-9_.:-]{1,128}")
TENANT_PATTERN = re.compile(r"[A-Za-z0-9_.:-]{1,64}")


def validate_request_id(request_id: str) -> None:
    """Raises ``RequestEndedError`` for an id that is empty, too long, or unsafe in logs, metadata and keys."""
    if REQUEST_ID_PATTERN.fullmatch(request_id) is None:
        raise invalid("request_id", f"must be 1 to 128 characters of [A-Za-z0-9_.:-], got {_shown(request_id)}")


def validate_tenant(tenant: str) -> None:
    """Raises ``RequestEndedError`` for a tenant's name that is too long, or unsafe in logs, metadata and keys."""
    if tenant and TENANT_PATTERN.fullmatch(tenant) is None:
        raise invalid("tenant", f"must be at most 64 characters of [A-Za-z0-9_.:-], got {_shown(tenant)}")


def validate_prompt(ids: Sequence[int], sampling: SamplingOptions, vocab_size: int, max_model_len: int) -> None:
    """Checks a tokenized prompt against the vocabulary and the context length.

    As in vLLM at least one token must fit behind the prompt, and ``max_tokens`` may not exceed the context length
    by itself. A ``max_tokens`` that reaches past the context is not refused: the answer ends with LENGTH there
    (``effective_max_tokens``), as users of vLLM's HTTP API expect.
    """
    if not ids:
        raise invalid("prompt", "is empty; at least 1 token is needed")
    if len(ids) >= max_model_len:
        raise invalid(
            "prompt",
            f"has {len(ids)} tokens, at most {max_model_len - 1} fit into the context of {max_model_len} tokens "
            "with one left for the answer",
        )
    _check_token_ids("prompt", ids, vocab_size)
    room = max_model_len - len(ids)
    if sampling.min_tokens > room:
        raise invalid("sampling.min_tokens", f"{sampling.min_tokens}, but only {room} fit behind the prompt")


def effective_max_tokens(prompt_tokens: int, sampling: SamplingOptions, max_model_len: int) -> int:
    """Tokens that the answer may have: ``max_tokens``, at most what the context leaves."""
    room = max_model_len - prompt_tokens
    return room if sampling.max_tokens is None else min(sampling.max_tokens, room)


def validate_sampling(
    options: SamplingOptions, vocab_size: int, max_model_len: int, *, max_logprobs: int = MAX_LOGPROBS
) -> None:
    """Checks every option. Raises ``RequestEndedError``.

    Args:
        vocab_size: the model's, that is the width of its logits.
        max_model_len: context length, prompt and answer together.
        max_logprobs: candidates per position that the engine gives; -1: all.
    """
    _check_ranges(options)
    _check_lengths(options, max_model_len)
    _check_logprobs(options, vocab_size, vocab_size if max_logprobs == -1 else max_logprobs)
    _check_stops(options)
    for name in ("stop_token_ids", "allowed_token_ids", "logprob_token_ids"):
        _check_token_ids(f"sampling.{name}", getattr(options, name), vocab_size)
    _check_logit_bias(options.logit_bias, vocab_size)
    if options.repetition_detection is not None:
        _check_repetition(options.repetition_detection)
    if options.structured_output is not None:
        validate_structured_output(options.structured_output)
    _check_extra_args(options.extra_args_json)
    _check_speculation(options)


def reject_unknown_fields(message: Message, path: str = "") -> None:
    """Raises ``RequestEndedError`` naming the first field, at any depth, that this version does not know.

    protobuf ignores such fields, and with them what a newer client asked for.
    """
    unknown = UnknownFieldSet(message)
    if len(unknown) > 0:
        where = path or message.DESCRIPTOR.name
        raise invalid(where, f"field number {unknown[0].field_number} is unknown to this version; leave it out")
    for descriptor, value in message.ListFields():
        name = f"{path}.{descriptor.name}" if path else descriptor.name
        for child in _messages(descriptor, value):
            reject_unknown_fields(child, name)


def _messages(descriptor: FieldDescriptor, value: Any) -> Iterable[Message]:
    if descriptor.message_type is None:
        return ()
    if descriptor.message_type.GetOptions().map_entry:
        return [entry for entry in value.values() if isinstance(entry, Message)]
    return (value,) if isinstance(value, Message) else value


def _check_ranges(options: SamplingOptions) -> None:
    _check("n", options.n, 1 <= options.n <= MAX_CHOICES, f"must be 1 to {MAX_CHOICES}")
    penalties = {"presence_penalty": options.presence_penalty, "frequency_penalty": options.frequency_penalty}
    for name, value in penalties.items():
        _check(name, value, -2 <= value <= 2, "must be -2 to 2")
    repetition = options.repetition_penalty
    _check("repetition_penalty", repetition, math.isfinite(repetition) and repetition > 0, "must be finite and above 0")
    temperature = options.temperature
    _check("temperature", temperature, 0 <= temperature <= MAX_TEMPERATURE, f"must be 0 to {MAX_TEMPERATURE:g}")
    _check("top_p", options.top_p, 0 < options.top_p <= 1, "must be above 0, at most 1")
    _check("top_k", options.top_k, -1 <= options.top_k < 2**31, "must be 0 (all tokens) or more")
    _check("min_p", options.min_p, 0 <= options.min_p <= 1, "must be 0 to 1")
    if options.seed is not None:
        _check("seed", options.seed, -(2**63) <= options.seed < 2**63, "must fit 64 bits")
    if options.n > 1 and temperature < GREEDY_BELOW:
        raise invalid("sampling.n", f"{options.n} answers would all be alike at temperature 0; n must be 1")


def _check_lengths(options: SamplingOptions, max_model_len: int) -> None:
    _check("min_tokens", options.min_tokens, options.min_tokens >= 0, "must be 0 or more")
    if options.max_tokens is not None:
        is_legal = 1 <= options.max_tokens <= max_model_len
        _check("max_tokens", options.max_tokens, is_legal, f"must be 1 to {max_model_len}, the context length")
        limit = f"must be at most max_tokens, {options.max_tokens}"
        _check("min_tokens", options.min_tokens, options.min_tokens <= options.max_tokens, limit)
    if options.thinking_token_budget is not None:
        budget = options.thinking_token_budget
        _check("thinking_token_budget", budget, 0 <= budget < 2**31, "must be 0 or more")
    if options.stream_interval is not None:
        interval = options.stream_interval
        _check("stream_interval", interval, 1 <= interval < 2**31, "must be 1 or more")


def _check_logprobs(options: SamplingOptions, vocab_size: int, limit: int) -> None:
    for name in ("logprobs", "prompt_logprobs"):
        value = getattr(options, name)
        if value is None:
            continue
        _check(name, value, value >= -1, "must be 0 or more, or -1 for all")
        asked = vocab_size if value == -1 else value
        _check(name, value, asked <= limit, f"at most {limit} are given")
    ids = options.logprob_token_ids
    _check("logprob_token_ids", len(ids), len(ids) <= MAX_LOGPROB_TOKEN_IDS, f"at most {MAX_LOGPROB_TOKEN_IDS} ids")
    if ids and options.logprobs is not None:
        _check("logprobs", options.logprobs, options.logprobs == len(ids), f"must equal logprob_token_ids, {len(ids)}")


def _check_stops(options: SamplingOptions) -> None:
    _check_words("stop", options.stop, MAX_STOP_STRINGS)
    _check_words("bad_words", options.bad_words, MAX_BAD_WORDS)
    if options.stop and not options.detokenize:
        raise invalid("sampling.stop", "stop strings need text; set detokenize, or use stop_token_ids")


def _check_words(name: str, words: Sequence[str], limit: int) -> None:
    _check(name, len(words), len(words) <= limit, f"at most {limit} are taken")
    for word in words:
        _check(name, len(word), len(word) <= MAX_STOP_CHARACTERS, f"each has at most {MAX_STOP_CHARACTERS} characters")
        if not word:
            raise invalid(f"sampling.{name}", "contains an empty string; leave it out")


def _check_token_ids(field: str, ids: Collection[int], vocab_size: int) -> None:
    # Prompts are long: two passes in C, and the search for the culprit only when there is one.
    if ids and not (min(ids) >= 0 and max(ids) < vocab_size):
        culprit = next(token_id for token_id in ids if not 0 <= token_id < vocab_size)
        raise invalid(field, f"token id {culprit} is outside the vocabulary, 0 to {vocab_size - 1}")


def _check_logit_bias(bias: dict[int, float] | None, vocab_size: int) -> None:
    _check_token_ids("sampling.logit_bias", bias or (), vocab_size)
    for token_id, value in (bias or {}).items():
        _check("logit_bias", value, math.isfinite(value), f"must be finite, token id {token_id} is")


def _check_repetition(detection: RepetitionDetection) -> None:
    name, largest, smallest = "repetition_detection", detection.max_pattern_size, detection.min_pattern_size
    _check(f"{name}.max_pattern_size", largest, 0 <= largest < 2**31, "must be 0 (off) or more")
    _check(f"{name}.min_pattern_size", smallest, 0 <= smallest <= largest, f"must be 0 to max_pattern_size, {largest}")
    is_legal = largest == 0 or 2 <= detection.min_count < 2**31
    _check(f"{name}.min_count", detection.min_count, is_legal, "must be 2 or more")


def _check_extra_args(text: str | None) -> None:
    if text is None:
        return
    field = "sampling.extra_args_json"
    if len(text) > MAX_EXTRA_ARGS_CHARACTERS:
        raise invalid(field, f"has {len(text)} characters, at most {MAX_EXTRA_ARGS_CHARACTERS} are taken")
    parsed = parse_json(field, text)
    if not isinstance(parsed, dict):
        raise invalid(field, f"must be a JSON object, got {type(parsed).__name__}")
    if ours := [key for key in parsed if key.startswith(OWN_ARGS_PREFIX)]:
        raise invalid(field, f"{ours[0]} is Forerun's own; set sampling.expert, draft_tokens or profile instead")


def _check_speculation(options: SamplingOptions) -> None:
    if options.expert is not None:
        known = [each.value for each in Expert]
        _check("expert", options.expert, options.expert in known, f"must be one of {', '.join(known)}")
    if options.draft_tokens is not None:
        is_legal = 0 <= options.draft_tokens < 2**31
        _check("draft_tokens", options.draft_tokens, is_legal, "must be 0 (draft nothing) or more")
    if options.profile is not None:
        _check("profile", options.profile, options.profile in PROFILES, f"must be one of {', '.join(PROFILES)}")


def _check(name: str, value: object, is_legal: bool, rule: str) -> None:
    # NaN fails every comparison, so no number gets past a range by being none.
    if not is_legal:
        raise invalid(f"sampling.{name}", f"{rule}, got {_shown(value)}")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
