"""Which split of the devices decodes most tokens per second, and what bounds each."""

from dataclasses import dataclass

from services.scheduler.sp_cost_model import Prediction, choose_drop, predict
from services.scheduler.sp_profile import Profile, SplitProfile

Shape = tuple[int, int, int]
"""(pp, tp, sp)."""


@dataclass(frozen=True, slots=True)
class PlannedSplit:
    """One split and what is to be expected of it."""

    split: SplitProfile
    prediction: Prediction
    reason: str
    """What sets its pace, and with speculation what the pace yields."""


@dataclass(frozen=True, slots=True)
class Plan:
    """All splits of the devices."""

    ranked: tuple[PlannedSplit, ...]
    """Those that were profiled, the fastest first."""
    not_profiled: tuple[Shape, ...]
    """Those of which nothing is known."""

    @property
    def pick(self) -> PlannedSplit:
        """The fastest."""
        return self.ranked[0]


def make_plan(profile: Profile, batch: int | None = None, drop: float | None = None) -> Plan:
    """Predicts every profiled split and ranks them.

    ``batch`` sequences are to be decoded at once; each split takes what its KV memory holds of them (None: as many as
    that holds). ``drop`` is the share of drafts to drop (None: the best for each split).
    """
    planned = [plan_split(split, batch, drop) for split in profile.splits]
    ranked = sorted(planned, key=lambda each: each.prediction.tokens_per_s, reverse=True)
    profiled = {split.shape for split in profile.splits}
    missing = tuple(shape for shape in shapes_of(profile.devices) if shape not in profiled)
    return Plan(tuple(ranked), missing)


def plan_split(split: SplitProfile, batch: int | None, drop: float | None) -> PlannedSplit:
    """What one split does with ``batch`` and ``drop``, as in ``make_plan``."""
    sequences = split.kv_sequences if batch is None else min(batch, split.kv_sequences)
    pipeline, curve = split.pipeline(), split.curve()
    if split.sp == 1:
        prediction = predict(pipeline, sequences)
    elif drop is None:
        prediction = choose_drop(pipeline, sequences, curve)
    else:
        prediction = predict(pipeline, sequences, curve, drop)
    return PlannedSplit(split, prediction, _reason(split, prediction, batch))


def shapes_of(devices: int) -> list[Shape]:
    """Every (pp, tp, sp) whose product is ``devices``."""
    divisors = [part for part in range(1, devices + 1) if devices % part == 0]
    return [(pp, tp, devices // (pp * tp)) for pp in divisors for tp in divisors if devices % (pp * tp) == 0]


def _reason(split: SplitProfile, prediction: Prediction, asked: int | None) -> str:
    parts = [_pace(split, prediction)]
    if split.sp > 1:
        speculation = prediction.speculation
        dropped = f", {speculation.drop:.0%} dropped" if speculation.drop else ""
        parts.append(f"{prediction.tokens_per_step:.1f} advance, drafts {speculation.acceptance:.0%} right{dropped}")
    if asked is not None and asked > split.kv_sequences:
        parts.append(f"KV holds {split.kv_sequences} of {asked} sequences")
    if max(prediction.rows) > split.profiled_rows:
        parts.append(f"extrapolated beyond {split.profiled_rows:g} rows")
    return "; ".join(parts)


def _pace(split: SplitProfile, prediction: Prediction) -> str:
    stage = prediction.slowest_stage
    rows = f"{prediction.rows[stage]:.1f}".removesuffix(".0")
    if prediction.is_latency_bound or not split.micro_batching:
        return f"the way around {len(split.stages)} stages with {rows} rows a step; no stage is always busy"
    drafting = " with drafting" if stage == split.drafting_stage else ""
    return f"stage {stage}{drafting}: {prediction.stage_ms[stage]:.1f} ms for {rows} rows"
