"""How often drafts are right, by how confident they are."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AcceptanceCurve:
    """How often drafts are right, by their confidence."""

    by_quantile: tuple[float, ...]
    """Acceptance in equal shares of the drafts, the least confident share first. One value: confidence tells nothing.

    A draft counts when the token before it was right. ``ValueError`` without values or outside 0..1."""

    def __post_init__(self) -> None:
        if not self.by_quantile or not all(0.0 <= rate <= 1.0 for rate in self.by_quantile):
            raise ValueError(f"acceptance by quantile needs one or more values from 0 to 1; got {self.by_quantile}")

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


def _weighted_mean(values: Sequence[float], weights: Sequence[float]) -> float:
    return sum(value * weight for value, weight in zip(values, weights, strict=True)) / sum(weights)
