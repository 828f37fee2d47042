"""The devices that take the place of real ones: a memory-bound GPU by its data sheet, slowed down.

Slowed down, because two cores run every process of both systems: what scheduling a step of 256 requests costs them
would be a large part of a GPU's step time. Batches gain and lose by the shape of the profile, which stays.
"""

from dataclasses import astuple, dataclass

from benchmarks.paper_shape.devices import L40S, LLAMA_70B, Assumptions, Cluster, ModelShape
from benchmarks.paper_shape.profiles import make_profile
from services.common.acceptance_curve import AcceptanceCurve
from services.common.latency_profile import LatencyProfile
from services.scheduler.sp_cost_model import Prediction, predict
from services.scheduler.sp_pipeline import StaleRows
from services.scheduler.sp_profile import SplitProfile

DRAFT_VOCABULARY = 16384


class DraftedShape(ModelShape):
    """A model whose draft adapter knows the most frequent tokens only, as those of ``forerun train adapter`` do."""

    @property
    def adapter_parameters(self) -> int:
        """That drafting reads: a linear layer, an attention layer, its rows of the LM head."""
        return self.hidden * self.hidden + self.attention_parameters + self.hidden * DRAFT_VOCABULARY


MODELS = {
    2: DraftedShape("Qwen2.5-32B", 64, 5120, 1024, 27648, 152064),
    4: DraftedShape(*astuple(LLAMA_70B)),
}
"""By stages: what so many 48 GB devices hold together with the KV of 256 sequences."""
ASSUMPTIONS = Assumptions(context=256, bandwidth_share=0.85, compute_share=0.7, nvlink_step_us=1.0, pcie_step_us=2.5)
"""Without tensor parallelism, so no all-reduce is among a step's costs."""


@dataclass(frozen=True)
class Split:
    """One way to use the devices: what its stages are told, and what the cost model makes of it."""

    profile: SplitProfile

    @property
    def synthetic(self) -> dict[str, object]:
        """The ``synthetic`` section of its stages."""
        split = self.profile
        # The last stage never drafts, so that its time is a whole step's on every stage.
        section: dict[str, object] = {"step": split.stages[-1].model_dump()}
        if split.draft is not None:
            section |= {"draft": split.draft.model_dump(), "acceptance": split.acceptance}
        return section

    def closed_form(self, batch: int, acceptance: float = 0.0) -> Prediction:
        """Of ``batch`` sequences whose drafts were right so often."""
        return predict(self.profile.pipeline(), batch, AcceptanceCurve((acceptance,)))


def splits(stages: int, acceptance: float, slow_down: float) -> tuple[Split, Split]:
    """Micro-batches and speculation over ``stages`` devices, each step ``slow_down`` times as long as the GPU's."""
    cluster = Cluster(L40S, stages, MODELS[stages], ASSUMPTIONS)
    profile = make_profile(cluster, [(stages, 1, 1), (1, 1, stages)], {stages: acceptance}, batch=1)
    micro_batches, speculation = (Split(_slowed(split, slow_down)) for split in profile.splits)
    return micro_batches, speculation


def _slowed(split: SplitProfile, factor: float) -> SplitProfile:
    return split.model_copy(
        update={
            "stages": tuple(_times(stage, factor) for stage in split.stages),
            "draft": None if split.draft is None else _times(split.draft, factor),
            # Here hops are real and cost what they cost; the closed form knows of none.
            "hop_ms": 0.0,
            "stale_rows": StaleRows.SKIP_LAST,
        }
    )


def _times(profile: LatencyProfile, factor: float) -> LatencyProfile:
    return LatencyProfile(rows=profile.rows, ms=tuple(factor * each for each in profile.ms))
