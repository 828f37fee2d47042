"""From what stages counted while they decoded to the profile of a split, as ``forerun plan`` reads it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import mean, median

from services.common.latency_profile import LatencyProfile
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
    drafted: float = 0.0
    """Drafts that ran ahead."""
    accepted: float = 0.0
    """Those of them that were right."""

    @property
    def around_ms(self) -> float:
        """What a step takes on all stages together."""
        return sum(stage.model_ms + stage.draft_ms for stage in self.stages)

    @property
    def slowest_ms(self) -> float:
        """What a step takes on the stage that needs longest."""
        return max(stage.model_ms + stage.draft_ms for stage in self.stages)

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
    speculates = split.sp > 1
    return SplitProfile(
        pp=split.pp,
        tp=split.tp,
        sp=split.sp,
        layers=split.layers,
        micro_batching=split.micro_batching,
        stages=tuple(
            _latency((window.batch, each.rows, each.model_ms) for window in filled for each in [window.stages[stage]])
            for stage in range(split.stages)
        ),
        draft=_latency((window.batch, window.stages[0].rows, window.stages[0].draft_ms) for window in filled)
        if speculates
        else None,
        acceptance=(acceptance(windows),) if speculates else None,
        hop_ms=round(fit_hop(windows), 3),
        kv_sequences=kv_sequences,
    )


def acceptance(windows: Sequence[Window]) -> float:
    """The share of right drafts over all windows. Raises ``ValueError`` where nothing was drafted."""
    drafted = sum(window.drafted for window in windows)
    if not drafted:
        raise ValueError("no draft ran ahead; is the replica's speculation on (mode: always)?")
    return round(sum(window.accepted for window in windows) / drafted, 4)


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
    share, more = divmod(sum(layers) - tail, len(others))
    return (*(share + (index < more) for index in range(len(others))), tail)


def _latency(points: Iterable[tuple[int, float, float]]) -> LatencyProfile:
    """From (batch, rows, milliseconds) of many windows: medians by batch, means where batches had the same rows."""
    by_batch: dict[int, list[tuple[float, float]]] = {}
    for batch, rows, ms in points:
        by_batch.setdefault(batch, []).append((rows, ms))
    by_rows: dict[float, list[float]] = {}
    for seen in by_batch.values():
        rows = round(median(rows for rows, _ in seen), 1)
        by_rows.setdefault(rows, []).append(median(ms for _, ms in seen))
    if len(by_rows) < 2:
        raise ValueError(
            "a profile needs two or more numbers of rows; measure more of them, or give the KV memory room for more "
            "sequences (kv_cache_memory_bytes, a shorter context)"
        )
    rising = sorted(by_rows)
    return LatencyProfile(rows=tuple(rising), ms=tuple(round(mean(by_rows[rows]), 3) for rows in rising))
