"""What a synthetic device says: the next token is a hash of the whole text, so any mistake in the text changes it."""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from services.common.acceptance_curve import AcceptanceCurve

_STATE_BITS = 63
"""A state fits into a signed 64-bit integer, so that it can travel as a tensor."""
_UNIT = 2.0**-64


def text_state(text: NDArray[np.int32]) -> int:
    """The hidden state after ``text``, int32 [tokens]: 63 bits."""
    digest = blake2b(text.tobytes(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> (64 - _STATE_BITS)


def next_token(state: int, vocabulary: int) -> int:
    """The token that follows, below ``vocabulary``."""
    return state % vocabulary


def reference_answer(prompt: Sequence[int], count: int, vocabulary: int) -> list[int]:
    """The ``count`` tokens after ``prompt``, without any scheduling."""
    text = np.empty(len(prompt) + count, np.int32)
    text[: len(prompt)] = prompt
    for end in range(len(prompt), len(text)):
        text[end] = next_token(text_state(text[:end]), vocabulary)
    return [int(token) for token in text[len(prompt) :]]


@dataclass(frozen=True, slots=True)
class RecordedDrafts:
    """Drafts that are right as often as was recorded, and the same ones whenever the same text is drafted for."""

    curve: AcceptanceCurve
    seed: int
    vocabulary: int

    def draft(self, state: int) -> tuple[int, float]:
        """The drafted token after ``state`` and its confidence, its quantile among all drafts: 0 to 1."""
        noise = blake2b(state.to_bytes(8, "big"), digest_size=16, key=self.seed.to_bytes(8, "big")).digest()
        confidence, luck = (int.from_bytes(half, "big") * _UNIT for half in (noise[:8], noise[8:]))
        token = next_token(state, self.vocabulary)
        if luck >= self.curve.at(confidence):
            token = (token + 1 + int(confidence * (self.vocabulary - 1))) % self.vocabulary
        return token, confidence
