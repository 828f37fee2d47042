"""What speculative parallelism (SP) is predicted from: a pipeline's stage latencies and its drafts' acceptance.

Plain values, shared by the closed forms (``sp_cost_model.py``) and by the simulation that checks them
(``sp_simulation.py``).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

Latency = Callable[[float], float]
"""Milliseconds that a stage needs for a step of so many rows (sequences that decode one token each)."""


class StaleRows(StrEnum):
    """What stages do with rows that are younger than a miss and were already handed to the pipeline."""

    RUN = "run"
    """Every stage computes them in vain."""
    SKIP_LAST = "skip_last"
    """The last stage leaves them out: it sampled the token that makes them stale, and sees the draft beside it."""
    SKIP_ALL = "skip_all"
    """The verdict reaches every stage before its next step, so all leave them out."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """PP and SP as one thing: ``PP × SP`` stages that ``PP`` micro-batches enter in turn.

    While one step of a micro-batch is verified, its next ``SP - 1`` steps already run on drafts. PP alone has SP = 1,
    speculation alone PP = 1; the ranks of a tensor-parallel (TP) group are one stage. (The combination of PP and SP is
    our own derivation; the paper's summary gives the two axes only.)
    """

    stages: tuple[Latency, ...]
    """One for each of the ``PP x SP`` stages, in order; drafting included where it happens."""
    micro_batches: int = 1
    """PP."""
    hop_ms: float = 0.0
    """From the end of a stage to the earliest start of the next, and from the last one back to the first."""
    stale_rows: StaleRows = StaleRows.RUN

    def __post_init__(self) -> None:
        if not self.stages or self.micro_batches < 1 or len(self.stages) % self.micro_batches:
            raise ValueError(f"{self.micro_batches} micro-batches do not divide {len(self.stages)} stages")

    @property
    def depth(self) -> int:
        """SP: the steps of one micro-batch in flight; what a miss costs instead of one."""
        return len(self.stages) // self.micro_batches


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
