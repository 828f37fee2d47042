"""The n-gram expert: drafts what followed the newest tokens when they stood in the request's own text before.

Prompt lookup decoding as in vLLM's n-gram proposer, kept up to date block by block instead of searched anew: a block
costs time by its tokens, not by the length of the text.
"""

from collections.abc import Sequence
from typing import NamedTuple

NEWEST = 32_768
"""Tokens of a prompt that are looked through, counted from its end; it costs some 600 bytes a token."""


class Found(NamedTuple):
    """A place in the text that ends as the text does."""

    behind: int
    """Position of the token that followed it."""
    match: int
    """Tokens that are the same."""


NOTHING = Found(0, 0)


class NgramIndex:
    """Of one request's text, prompt and answer."""

    def __init__(self, prompt: Sequence[int], shortest: int, longest: int) -> None:
        """``shortest`` and ``longest``: tokens of a match that are looked for."""
        self._text: list[int] = []
        self._sizes = range(shortest, longest + 1)
        # By size: where the text went on after the latest place with these tokens that lies before the end.
        self._behind: dict[int, dict[tuple[int, ...], int]] = {size: {} for size in self._sizes}
        self.found = NOTHING
        """The latest of the longest places that the text's end is like; ``NOTHING`` without one."""
        self.extend(prompt[-NEWEST:])

    def extend(self, tokens: Sequence[int]) -> None:
        """The text goes on."""
        if not tokens:
            return
        text, start = self._text, len(self._text)
        text.extend(tokens)
        for size, behind in self._behind.items():
            # n-grams that have just got a token behind them: those that end before the newest one.
            first, last = max(0, start - size), len(text) - size
            if first >= last:
                continue
            neighbours = (text[first + offset : last + offset] for offset in range(size))
            behind.update(zip(zip(*neighbours, strict=True), range(first + size, len(text)), strict=True))
        self.found = self._search()

    def draft(self, tokens: int) -> list[int]:
        """``tokens`` of what follows there, or nothing; where the text ends, it goes on as it has repeated itself."""
        behind, match = self.found
        if not match:
            return []
        period = len(self._text) - behind
        return [self._text[behind + index % period] for index in range(tokens)]

    def _search(self) -> Found:
        for size in reversed(self._sizes):
            if (behind := self._behind[size].get(tuple(self._text[-size:]))) is not None:
                return Found(behind, size)
        return NOTHING
