"""The acceptance curve of a replica's latest drafts."""

from collections import deque
from itertools import pairwise
from statistics import fmean

from services.common.acceptance_curve import AcceptanceCurve

WINDOW = 2048
"""Drafts that are remembered; older ones are forgotten."""

SHARES, SHARE_DRAFTS = 10, 50
"""The curve has so many equal shares, or fewer when they would hold less than so many drafts each: in a handful of
drafts confidence seems to tell what is chance."""


def shares_of(drafts: float) -> int:
    """The equal shares into which so many drafts are divided."""
    return max(1, min(SHARES, int(drafts) // SHARE_DRAFTS))


class RecentDrafts:
    """Confidence and truth of the last ``WINDOW`` drafts, those that were dropped included.

    A dropped draft is judged like any other, since the verified token is known when its request comes back; so the
    curve is whole whatever is dropped.
    """

    def __init__(self) -> None:
        self._drafts: deque[tuple[float, bool]] = deque(maxlen=WINDOW)

    def observe(self, confidence: float, *, hit: bool) -> None:
        """One draft was judged."""
        self._drafts.append((confidence, hit))

    def curve(self) -> AcceptanceCurve:
        """Acceptance in equal shares of the drafts, the least confident first; 0 before any was judged."""
        hits = [hit for _, hit in sorted(self._drafts, key=lambda draft: draft[0])]
        if not hits:
            return AcceptanceCurve((0.0,))
        count = shares_of(len(hits))
        bounds = [len(hits) * index // count for index in range(count + 1)]
        return AcceptanceCurve(tuple(fmean(hits[low:high]) for low, high in pairwise(bounds)))
