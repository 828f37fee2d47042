"""Drafting by looking up: what followed the last time that a text's newest tokens stood in it.

Texts repeat themselves, names and phrases of the prompt above all, and there a token copied from behind the longest
match is right more often than what a small adapter can know. As in prompt lookup decoding and suffix decoding, one
token at a time, which is all that a pipeline's first stage can run ahead with.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

LONGEST_MATCH = 8


class Found(NamedTuple):
    """A token that may come next."""

    token_id: int
    match_length: int
    """Tokens at the text's end that stood before it the last time, 1 to ``LONGEST_MATCH``."""

    def agreement(self, by_length: Sequence[float]) -> float:
        """How often such a token is right, given how often the ones behind matches of 1, 2, … tokens are."""
        return by_length[min(self.match_length, len(by_length)) - 1]


def look_up(tokens: NDArray[np.int32]) -> Found | None:
    """What followed the latest of the longest matches; None where the newest token is new.

    Args:
        tokens: [length], a text's token ids so far.
    """
    # Ends of matches, each with a token behind it.
    ends = np.flatnonzero(tokens[:-1] == tokens[-1])
    if not len(ends):
        return None
    length = 1
    while length < LONGEST_MATCH:
        longer = ends[ends >= length]
        longer = longer[tokens[longer - length] == tokens[-1 - length]]
        if not len(longer):
            break
        ends, length = longer, length + 1
    return Found(int(tokens[ends[-1] + 1]), length)
