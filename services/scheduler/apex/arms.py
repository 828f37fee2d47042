"""What is counted apart: each expert, and of the n-gram expert matches of different length.

A longer match is a better reason to believe in what followed it, so its drafts live longer (own choice; the buckets
are those of the default match lengths 2 to 5).
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from services.common.expert import DEPTHS, Expert

POSITIONS: Final = DEPTHS[-1]
"""Of drafts in a block, 1 .. POSITIONS."""

ARMS: Final = (
    (Expert.NGRAM, 1),
    (Expert.NGRAM, 3),
    (Expert.NGRAM, 5),
    (Expert.EAGLE3, 0),
    (Expert.DRAFT_MODEL, 0),
)
"""Expert, and least tokens of the match."""

NGRAM_ARMS: Final = 3
"""The first ones."""

_MEDIUM, _LONG = ARMS[1][1], ARMS[2][1]

_NEURAL: Final = {Expert.EAGLE3: 3, Expert.DRAFT_MODEL: 4}


def arm_of(expert: Expert, ngram_match: int) -> int:
    """Index into ``ARMS``. ``ngram_match``: tokens; of no interest with other experts. Not for ``Expert.PLAIN``."""
    if expert is Expert.NGRAM:
        return (ngram_match >= _MEDIUM) + (ngram_match >= _LONG)
    return _NEURAL[expert]


def ngram_arms(matches: NDArray[np.int64]) -> NDArray[np.int64]:
    """``arm_of`` the n-gram expert for many matches."""
    return np.add(matches >= _MEDIUM, matches >= _LONG, dtype=np.int64)
