"""Profiles for ``forerun plan`` of clusters that are not here."""

from benchmarks.paper_shape.devices import Cluster
from services.common.latency_profile import LatencyProfile
from services.scheduler.sp_pipeline import StaleRows
from services.scheduler.sp_planner import Shape
from services.scheduler.sp_profile import Profile, SplitProfile

ROWS = (1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512)
QUANTILES = 20


def acceptance_curve(mean: float) -> tuple[float, ...]:
    """Acceptance by confidence, ``1 - 2(1 - mean)(1 - u)`` at quantile u: the least confident share α dropped, the
    others reach ``1 - (1 - mean)(1 - α)``. From mean 0.70 and α = 0.2 that is 9 % better, within the 8 to 14 % that the
    paper reports (section 7.4)."""
    middles = [(index + 0.5) / QUANTILES for index in range(QUANTILES)]
    return tuple(1 - 2 * (1 - mean) * (1 - middle) for middle in middles)


def make_profile(cluster: Cluster, shapes: list[Shape], acceptance: dict[int, float], batch: int) -> Profile:
    """The splits named by ``shapes``. ``acceptance``: mean share of right drafts by SP. ``batch``: whose activations
    the hop between nodes carries."""
    splits = tuple(_split(cluster, shape, acceptance, batch) for shape in shapes)
    return Profile(model=cluster.model.name, devices=cluster.devices, origin="simulated", splits=splits)


def _split(cluster: Cluster, shape: Shape, acceptance: dict[int, float], batch: int) -> SplitProfile:
    """Layers are divided so that all stages take as long, the one that drafts with its drafting."""
    pp, tp, sp = shape
    stages, speculates = pp * sp, sp > 1
    draft_ms = [cluster.draft_ms(rows, tp) if speculates else 0.0 for rows in ROWS]
    stage_ms = [(cluster.step_ms(rows, tp) + draft) / stages for rows, draft in zip(ROWS, draft_ms, strict=True)]
    drafting_ms = [whole - draft for whole, draft in zip(stage_ms, draft_ms, strict=True)]
    latencies = [LatencyProfile(rows=ROWS, ms=tuple(stage_ms)) for _ in range(stages)]
    latencies[pp - 1] = LatencyProfile(rows=ROWS, ms=tuple(drafting_ms))
    return SplitProfile(
        pp=pp,
        tp=tp,
        sp=sp,
        stages=tuple(latencies),
        draft=LatencyProfile(rows=ROWS, ms=tuple(draft_ms)) if speculates else None,
        acceptance=acceptance_curve(acceptance[sp]) if speculates else None,
        hop_ms=cluster.hop_ms(batch / pp) if stages > 1 else 0.0,
        kv_sequences=cluster.kv_sequences(drafts=speculates),
        # As in the paper; ours leaves them out on the last stage.
        stale_rows=StaleRows.RUN,
    )
