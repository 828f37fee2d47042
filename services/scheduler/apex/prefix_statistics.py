"""Entropy and repetition of a text's newest tokens, kept up to date token by token (papers/apex sections 3, 4.1)."""

import math
from collections import deque
from collections.abc import Sequence
from typing import Final

import numpy as np

WINDOW: Final = 64
"""Newest tokens that are looked at."""

REMEMBERED_PROMPT: Final = 8192
"""Newest tokens of a prompt whose n-grams count as seen: beyond, a long prompt would cost more than it tells."""

_BITS: Final = 21
"""Of a token id in a packed n-gram; three fit into 63 bits, and no vocabulary has two million tokens."""
_MASK: Final = 2**_BITS - 1
_XLOGX: Final = (0.0, *(count * math.log(count) for count in range(1, WINDOW + 2)))


class PrefixStatistics:
    """O(1) per token; memory grows with the answer and with at most ``REMEMBERED_PROMPT`` tokens of the prompt."""

    def __init__(self, prompt: Sequence[int]) -> None:
        self._seen_2: set[int] = set()
        self._seen_3: set[int] = set()
        self._window: deque[tuple[int, bool, bool]] = deque()
        self._counts: dict[int, int] = {}
        self._sum_xlogx = 0.0
        self._repeated_2 = self._repeated_3 = 0
        self._before, self._newest = 0, 0
        self._length = 0
        older, newer = prompt[-REMEMBERED_PROMPT:-WINDOW], prompt[-WINDOW:]
        self._remember(older)
        self.extend(newer)

    @property
    def entropy(self) -> float:
        """Shannon's, of the token ids in the window, over that of as many different ones; within 0 and 1."""
        length = len(self._window)
        return 1.0 - self._sum_xlogx / _XLOGX[length] if length > 1 else 0.0

    @property
    def repeated_2(self) -> float:
        """Share of the window's tokens that end a pair that the text had before."""
        return self._repeated_2 / len(self._window) if self._window else 0.0

    @property
    def repeated_3(self) -> float:
        """Share of the window's tokens that end a triple that the text had before."""
        return self._repeated_3 / len(self._window) if self._window else 0.0

    def extend(self, tokens: Sequence[int]) -> None:
        """The text goes on with these."""
        seen_2, seen_3, window = self._seen_2, self._seen_3, self._window
        for each in tokens:
            token = each & _MASK
            pair = self._newest << _BITS | token
            triple = self._before << 2 * _BITS | pair
            repeats_2, repeats_3 = pair in seen_2, triple in seen_3
            # The first tokens have no two before them.
            if self._length >= 1:
                seen_2.add(pair)
            if self._length >= 2:
                seen_3.add(triple)
            self._before, self._newest = self._newest, token
            self._length += 1
            window.append((token, repeats_2, repeats_3))
            self._repeated_2 += repeats_2
            self._repeated_3 += repeats_3
            self._count(token, 1)
            if len(window) > WINDOW:
                oldest, was_2, was_3 = window.popleft()
                self._repeated_2 -= was_2
                self._repeated_3 -= was_3
                self._count(oldest, -1)

    def _count(self, token: int, change: int) -> None:
        before = self._counts.get(token, 0)
        after = before + change
        self._sum_xlogx += _XLOGX[after] - _XLOGX[before]
        if after:
            self._counts[token] = after
        else:
            del self._counts[token]

    def _remember(self, tokens: Sequence[int]) -> None:
        """Without looking at each: only the window needs to know what it repeats."""
        ids = np.asarray(tokens, np.int64) & _MASK
        pairs = ids[:-1] << _BITS | ids[1:]
        self._seen_2.update(pairs.tolist())
        self._seen_3.update((ids[:-2] << 2 * _BITS | pairs[1:]).tolist())
        self._length = len(ids)
        if len(ids) > 1:
            self._before = int(ids[-2])
        if len(ids):
            self._newest = int(ids[-1])
