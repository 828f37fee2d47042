"""What speculative parallelism (SP) is predicted from, beside its drafts' acceptance: a pipeline's stage latencies.

Plain values, shared by the closed forms (``sp_cost_model.py``) and by the simulation that checks them
(``sp_simulation.py``).
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

Latency = Callable[[float], float]
"""Milliseconds that a stage needs for a step of so many rows (sequences that decode one token each)."""


def together(*latencies: Latency) -> Latency:
    """One after the other, for the same rows."""
    return lambda rows: sum(latency(rows) for latency in latencies)


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
