"""From what stages counted while they decoded to the profile of a split, as ``forerun plan`` reads it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean, median

from services.common.acceptance_curve import AcceptanceCurve
from services.common.even_shares import even_shares
from services.common.latency_profile import LatencyProfile
from services.scheduler.recent_drafts import shares_of
from services.scheduler.sp_profile import SplitProfile
from services.scheduler.sp_split import Split


@dataclass(frozen=True, slots=True)
class StageWindow:
    """A stage's mean step within a window."""

    rows: float
    model_ms: float
    """From step to step without waiting and without drafting: the model, and what plans and replies cost."""
    draft_ms: float
    """Drafting; 0 on stages that do not."""

    @property
    def busy_ms(self) -> float:
        """All of it."""
        return self.model_ms + self.draft_ms


@dataclass(frozen=True, slots=True)
class Window:
    """Steady decoding of ``batch`` sequences for a while, by the stages' own counters."""

    batch: int
    steps_in_flight: int
    """As many as the split keeps with so many sequences."""
    step_ms: float
    """From step to step, waiting included."""
    tokens_per_s: float
    """That reached the client."""
    stages: tuple[StageWindow, ...]
    drafts: tuple[tuple[float, float], ...] = ()
    """Drafts that were judged, and those of them that were right, by rising confidence."""

    @property
    def around_ms(self) -> float:
        """What a step takes on all stages together."""
        return sum(stage.busy_ms for stage in self.stages)

    @property
    def slowest_ms(self) -> float:
        """What a step takes on the stage that needs longest."""
        return max(stage.busy_ms for stage in self.stages)

    def step_ms_with(self, hop_ms: float) -> float:
        """The time from step to step that its stages' times and a hop would make (``sp_cost_model.predict``)."""
        return max(self.slowest_ms, (self.around_ms + len(self.stages) * hop_ms) / self.steps_in_flight)

    @property
    def largest_hop_ms(self) -> float:
        """The hop that explains its step time, were the way around the pipeline what sets the pace."""
        return max(0.0, (self.step_ms * self.steps_in_flight - self.around_ms) / len(self.stages))


def split_profile(split: Split, windows: Sequence[Window], kv_sequences: int) -> SplitProfile:
    """The profile of ``split``: medians over the windows of each batch.

    Windows with fewer sequences than micro-batches tell of hops only: their stages do not work at the same time, which
    on shared memory makes them faster than they will be.

    Raises:
        ValueError: the windows are of fewer than two numbers of rows, or speculation drafted nothing.
    """
    filled = [window for window in windows if window.steps_in_flight == split.steps_in_flight(split.stages)]
    # First, since drafting that did not happen took no time either.
    acceptance = _acceptance(windows) if split.sp > 1 else None
    return SplitProfile(
        pp=split.pp,
        tp=split.tp,
        sp=split.sp,
        layers=split.layers,
        micro_batching=split.micro_batching,
        stages=tuple(_latency(filled, stage, lambda each: each.model_ms) for stage in range(split.stages)),
        draft=None if acceptance is None else _latency(filled, 0, lambda each: each.draft_ms),
        acceptance=acceptance,
        hop_ms=round(fit_hop(windows), 3),
        kv_sequences=kv_sequences,
    )


def fit_hop(windows: Sequence[Window]) -> float:
    """The milliseconds of a hop that explain the measured step times best; own derivation.

    A step takes as long as the slowest stage, or as the way around (stages and hops) divided by the steps in flight.
    So a window in which the way around sets the pace tells the hop, ``largest_hop_ms``; in any other it can be no
    longer. The hop with the least sum of relative errors over all windows takes both into account, whichever they are.
    That sum is piecewise monotone in the hop with its minima at 0 or at some window's ``largest_hop_ms``.
    """

    def error(hop_ms: float) -> float:
        return sum(abs(window.step_ms_with(hop_ms) / window.step_ms - 1.0) for window in windows)

    return min((0.0, *sorted(window.largest_hop_ms for window in windows)), key=error)


def balanced_layers(layers: Sequence[int], stage_ms: Sequence[float]) -> tuple[int, ...]:
    """A split of the same layers whose stages take equally long, from a measured one; own derivation.

    All layers cost the same, and the last stage carries the LM head and the sampling beside its own: what it takes
    longer than its layers explain. Every stage keeps at least one layer.
    """
    *others, last = layers
    layer_ms = sum(stage_ms[:-1]) / sum(others)
    head_ms = max(0.0, stage_ms[-1] - layer_ms * last)
    fair_ms = (layer_ms * sum(layers) + head_ms) / len(layers)
    tail = max(round((fair_ms - head_ms) / layer_ms), 1)
    return (*even_shares(sum(layers) - tail, len(others)), tail)


def _acceptance(windows: Sequence[Window]) -> tuple[float, ...]:
    """Of all windows, in equal shares by confidence."""
    by_bin = zip(*(window.drafts for window in windows if window.drafts), strict=True)
    bins = [(sum(drafts for drafts, _ in each), sum(right for _, right in each)) for each in by_bin]
    drafted = sum(drafts for drafts, _ in bins)
    if not drafted:
        raise ValueError("no draft ran ahead; is the replica's speculation on (mode: always)?")
    curve = AcceptanceCurve.from_bins(bins, shares_of(drafted))
    return tuple(round(share, 4) for share in curve.by_quantile)


def _latency(windows: Sequence[Window], stage: int, time_of: Callable[[StageWindow], float]) -> LatencyProfile:
    """One stage's: medians of rows and times by batch, and means where batches had the same rows."""
    by_batch: dict[int, list[StageWindow]] = {}
    for window in windows:
        by_batch.setdefault(window.batch, []).append(window.stages[stage])
    by_rows: dict[float, list[float]] = {}
    for seen in by_batch.values():
        rows = round(median(each.rows for each in seen), 1)
        by_rows.setdefault(rows, []).append(median(time_of(each) for each in seen))
    if len(by_rows) < 2:
        raise ValueError(
            "a profile needs two or more numbers of rows; measure more of them, or give the KV memory room for more "
            "sequences (kv_cache_memory_bytes, a shorter context)"
        )
    rising = sorted(by_rows)
    return LatencyProfile(rows=tuple(rising), ms=tuple(round(mean(by_rows[rows]), 3) for rows in rising))
