"""Keeps a prompt that ends within a character from coming back in the answer.

vLLM primes the tokenizer's ``DecodeStream`` with the prompt. Where the prompt's text ends in U+FFFD (a token-ids
prompt may stop after two of a character's three bytes), that stream finds no place to start from and gives the whole
prompt back with the first complete character. Here such a stream starts at the last whole character instead and is
fed the rest, so that the answer begins with the character that its first tokens complete.

Relies on (vLLM 0.32): ``OutputProcessor.add_request`` makes ``request_states[id].detokenizer``, whose ``stream`` only
needs ``step(tokenizer, token_id)``.
"""

from typing import Any

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.engine.detokenizer import FastIncrementalDetokenizer
from vllm.v1.engine.output_processor import OutputProcessor

REPLACEMENT = "\ufffd"

_TAIL_TOKENS = 8
"""Enough to see how a text ends; whole prompts would be decoded twice."""
_MAX_BROKEN_TOKENS = 256
"""A longer run of broken bytes is not text; the stream then starts behind it."""


def guard_prompt_ends(processor: OutputProcessor) -> None:
    """Makes ``processor`` treat prompts that end within a character well."""
    add_request = processor.add_request

    def add_guarded(request: EngineCoreRequest, *args: Any, **kwargs: Any) -> None:
        add_request(request, *args, **kwargs)
        state = processor.request_states.get(request.request_id)
        if state is not None and isinstance(state.detokenizer, FastIncrementalDetokenizer):
            _guard(state.detokenizer, request.prompt_token_ids or [])

    processor.add_request = add_guarded


def _guard(detokenizer: FastIncrementalDetokenizer, prompt: list[int]) -> None:
    tokenizer, skip_special = detokenizer.tokenizer, detokenizer.skip_special_tokens
    if tokenizer.decode(prompt[-_TAIL_TOKENS:], skip_special_tokens=skip_special).endswith(REPLACEMENT):
        detokenizer.stream = PromptEndStream(tokenizer, prompt, skip_special)


class PromptEndStream:
    """A ``DecodeStream`` that starts at a prompt's last whole character."""

    def __init__(self, tokenizer: Tokenizer, prompt: list[int], skip_special_tokens: bool) -> None:
        broken = _broken_tokens(tokenizer, prompt, skip_special_tokens)
        whole, rest = prompt[: len(prompt) - broken], prompt[len(prompt) - broken :]
        rest_text = tokenizer.decode(rest, skip_special_tokens=skip_special_tokens)
        # A token may hold a whole character and the beginning of the next.
        self._whole_text = rest_text.rstrip(REPLACEMENT)
        self._broken_text = rest_text[len(self._whole_text) :]
        self._stream = DecodeStream(ids=whole, skip_special_tokens=skip_special_tokens)
        if broken <= _MAX_BROKEN_TOKENS:
            for token_id in rest:
                self._stream.step(tokenizer, token_id)

    def step(self, tokenizer: Tokenizer, token_id: int) -> str | None:
        """The text that ``token_id`` completes, if any; none of the prompt's."""
        text: str | None = self._stream.step(tokenizer, token_id)
        if text and self._broken_text:
            # Bytes that the answer did not complete belong to the prompt, as do characters that are U+FFFD truly.
            text = text.removeprefix(self._whole_text).removeprefix(self._broken_text)
            self._broken_text = ""
        return text


def _broken_tokens(tokenizer: Tokenizer, prompt: list[int], skip_special_tokens: bool) -> int:
    """Tokens at the end of the prompt behind its last whole character."""
    for broken in range(1, min(len(prompt), _MAX_BROKEN_TOKENS) + 1):
        tail = prompt[max(0, len(prompt) - broken - _TAIL_TOKENS) : len(prompt) - broken]
        if not tokenizer.decode(tail, skip_special_tokens=skip_special_tokens).endswith(REPLACEMENT):
            return broken
    return len(prompt)
