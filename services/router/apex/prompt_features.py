"""What is known of a request before its first token (papers/apex section 4.1): length, repetition and entropy of the
prompt, its pooled embedding, and the decoding configuration.

Only the newest ``NEWEST`` tokens are looked at, so that the longest prompts cost no more than that.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from services.common.types import SamplingOptions

FEATURES_VERSION: Final = 1
"""Raised when a feature changes its meaning."""

SCALARS: Final = (
    "log_prompt_tokens",
    "entropy",
    "repeated_2",
    "repeated_3",
    "end_entropy",
    "end_repeated_2",
    "log_answer_tokens",
    "temperature",
    "top_p",
    "is_structured",
)
NEWEST: Final = 4096
END: Final = 64
"""Newest tokens that also count by themselves: answers go on from there."""

_BITS: Final = 21
"""Of a token id in a packed n-gram; three fit into 63 bits, and no vocabulary has two million tokens."""

Floats = NDArray[np.float32]


def feature_count(embedding_width: int) -> int:
    """How many there are."""
    return len(SCALARS) + 2 * embedding_width


def prompt_features(
    prompt: Sequence[int], sampling: SamplingOptions, answer_tokens: int, embedding: NDArray[np.float16] | Floats
) -> Floats:
    """``SCALARS``, then the mean embedding of the prompt and that of its end.

    Args:
        prompt: token ids; at least one.
        sampling: as asked for.
        answer_tokens: the longest answer that it allows, in the room that the context leaves.
        embedding: a few numbers for each token id, [vocabulary, width].

    Returns:
        [``feature_count(width)``].
    """
    ids = np.array(prompt[-NEWEST:], np.int64)
    end = ids[-END:]
    pairs = ids[:-1] << _BITS | ids[1:]
    triples = pairs[:-1] << _BITS | ids[2:]
    scalars = (
        np.log1p(len(prompt)),
        _entropy(ids),
        _repeated(pairs),
        _repeated(triples),
        _entropy(end),
        _repeated(pairs[-END:]),
        np.log1p(answer_tokens),
        sampling.temperature,
        sampling.top_p,
        float(sampling.structured_output is not None),
    )
    pooled = embedding[ids].astype(np.float32)
    return np.concatenate([np.array(scalars, np.float32), pooled.mean(0), pooled[-END:].mean(0)])


def _entropy(ids: NDArray[np.int64]) -> float:
    """Shannon's, of the token ids, over that of as many different ones; within 0 and 1."""
    if len(ids) < 2:
        return 0.0
    shares = np.unique(ids, return_counts=True)[1] / len(ids)
    return float(-(shares * np.log(shares)).sum() / np.log(len(ids)))


def _repeated(packed: NDArray[np.int64]) -> float:
    """Share of n-grams that occurred before."""
    return 1.0 - len(np.unique(packed)) / len(packed) if len(packed) else 0.0
