"""How often drafts are right, by how confident they are."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Self


@dataclass(frozen=True, slots=True)
class AcceptanceCurve:
    """How often drafts are right, by their confidence."""

    by_quantile: tuple[float, ...]
    """Acceptance in equal shares of the drafts, the least confident share first. One value: confidence tells nothing.

    A draft counts when the token before it was right. ``ValueError`` without values or outside 0..1."""

    def __post_init__(self) -> None:
        if not self.by_quantile or not all(0.0 <= rate <= 1.0 for rate in self.by_quantile):
            raise ValueError(f"acceptance by quantile needs one or more values from 0 to 1; got {self.by_quantile}")

    @classmethod
    def from_bins(cls, bins: Sequence[tuple[float, float]], shares: int) -> Self:
        """From (drafts, right ones) counted by rising confidence, the curve in ``shares`` equal shares.

        Drafts of a bin that lies in two shares are taken to be right as often in both. ``ValueError`` without drafts.
        """
        drafts = [0.0, *accumulate(count for count, _ in bins)]
        right = [0.0, *accumulate(hits for _, hits in bins)]
        total = drafts[-1]
        if not total:
            raise ValueError("an acceptance curve needs drafts; none were counted")
        bounds = [_interpolated(total * index / shares, drafts, right) for index in range(shares + 1)]
        return cls(tuple(min(1.0, (high - low) * shares / total) for low, high in pairwise(bounds)))

    def at(self, quantile: float) -> float:
        """Acceptance of a draft that is more confident than this share (0..1) of all drafts."""
        bins = len(self.by_quantile)
        return self.by_quantile[min(int(quantile * bins), bins - 1)]

    def kept(self, drop: float) -> float:
        """Acceptance of what is left without the least confident share ``drop``; at 1 that of the most confident."""
        if drop >= 1.0:
            return self.by_quantile[-1]
        bins = len(self.by_quantile)
        shares = [min(1.0, max(0.0, (index + 1) - drop * bins)) for index in range(bins)]
        return _weighted_mean(self.by_quantile, shares)


def _interpolated(x: float, xs: Sequence[float], ys: Sequence[float]) -> float:
    """``y`` at ``x`` on the lines through points with rising ``xs``."""
    right = min(bisect_right(xs, x), len(xs) - 1)
    width = xs[right] - xs[right - 1]
    return ys[right - 1] + (ys[right] - ys[right - 1]) * ((x - xs[right - 1]) / width if width else 0.0)


def _weighted_mean(values: Sequence[float], weights: Sequence[float]) -> float:
    return sum(value * weight for value, weight in zip(values, weights, strict=True)) / sum(weights)
