"""Whether speculating pays and how many drafts to drop, from what stages and verdicts have shown so far.

Predictions of ``sp_cost_model`` are compared: the decoding batch run ahead on drafts, with each share of them dropped,
and the same batch in micro-batches. Each stage's time is a line over the rows of a step, fitted to the steps it has
reported, so steps of either kind teach both; acceptance is that of the latest drafts, by their confidence. Where no
draft has been judged for long, a short probe refreshes it. (Own derivation: the paper profiles before it serves.)

A share of each step's drafts is dropped rather than all below a threshold of confidence: in simulations with drop
shares that pay, the even steps that this gives are worth 1 to 7 % more than the better choice of drafts. Only in
batches of up to four does a threshold choose so much better that it wins, and there it pays to drop nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from services.scheduler.line_fit import Line
from services.scheduler.recent_drafts import RecentDrafts
from services.scheduler.sp_cost_model import choose_drop, predict
from services.scheduler.sp_pipeline import Pipeline, StaleRows, together

DECIDE_EVERY_STEPS = 16
"""A decision holds for so many steps: each change lets the pipeline run dry once."""

MARGIN = 1.03
"""How much better the other way must promise to be."""

DROP_MARGIN = 1.01
"""How much better another share of dropped drafts must promise to be; noise is no reason to change."""

PROBE_EVERY_STEPS, PROBE_STEPS = 512, 32
"""The other way is tried this often and for so long: drafts change, and a step of other rows tells what rows cost."""

LEARNING_STEPS, LEARNING_VERDICTS = 64, 64
"""Before so many steps were reported and drafts judged, the two ways take turns."""

LEARNING_DROP = 0.25
"""Dropped now and then until then: steps of equal rows do not tell what a row costs."""

_STEP_MEMORY, _VERDICT_MEMORY = 0.998, 0.99
"""Weight that an observation keeps with each later one."""


class Reason(StrEnum):
    """Why a step speculates, or does not."""

    FORCED = "forced"
    PAYS = "pays"
    PROBE = "probe"
    DOES_NOT_PAY = "does-not-pay"
    COMPARE = "compare"

    @property
    def speculates(self) -> bool:
        """False for the last two: a step that is compared with, or is better."""
        return self not in (Reason.DOES_NOT_PAY, Reason.COMPARE)


@dataclass(frozen=True, slots=True)
class StageTime:
    """What one stage spent on one step, in milliseconds."""

    rows: int
    """That it ran, without those that were left out."""
    model_ms: float
    """Forward pass and sampling."""
    draft_ms: float
    """Drafting; 0 on stages behind the first."""
    began_ns: int = 0
    """When the forward pass began, nanoseconds since the epoch by the stage's clock; for traces only."""

    @property
    def busy_ms(self) -> float:
        """All of it."""
        return self.model_ms + self.draft_ms

    @property
    def ended_ns(self) -> int:
        """When the model had done."""
        return self.began_ns + round(1e6 * self.busy_ms)


class SpController:
    """One per replica; used from the engine core's thread."""

    def __init__(self, stages: int, *, always: bool, drop_fraction: float | None = None) -> None:
        """``always``: speculate whatever is measured. ``drop_fraction``: None to choose it."""
        self._always = always
        self._chooses_drop = drop_fraction is None
        self._drop_fraction = drop_fraction or 0.0
        self._model = [Line() for _ in range(stages)]
        self._draft = Line()
        self._drafts = RecentDrafts()
        self._steps = self._verdicts = 0
        self._acceptance = 0.0
        self._planned = self._decided_at = 0
        self._probed_at = -PROBE_STEPS
        self._is_on = True

    @property
    def acceptance(self) -> float:
        """Moving share of the drafts that ran ahead and were right."""
        return self._acceptance

    @property
    def drop_fraction(self) -> float:
        """The share of each step's drafts, the least confident ones, that is not to run ahead."""
        return self._drop_fraction

    def observe_step(self, times: Sequence[StageTime | None]) -> None:
        """A step of decoding rows only. ``times``: by stage; None where a stage's report is not in yet."""
        self._steps += 1
        for line, spent in zip(self._model, times, strict=True):
            if spent is not None and spent.rows:
                line.observe(spent.rows, spent.model_ms)
        if times[0] is not None and times[0].draft_ms > 0:
            self._draft.observe(times[0].rows, times[0].draft_ms)

    def observe_draft(self, confidence: float, *, hit: bool, ran: bool) -> None:
        """A draft was judged. ``ran``: it ran ahead; it was dropped otherwise."""
        self._drafts.observe(confidence, hit=hit)
        if ran:
            self._verdicts += 1
            # The plain mean until there is enough to forget.
            weight = max(1 - _VERDICT_MEMORY, 1 / self._verdicts)
            self._acceptance += weight * (hit - self._acceptance)

    def decide(self, batch: int) -> Reason:
        """For the next step, with ``batch`` requests decoding. To be called once a step."""
        self._planned += 1
        batch = max(1, batch)
        has_learned = self._steps >= LEARNING_STEPS and self._verdicts >= LEARNING_VERDICTS
        if self._chooses_drop and self._planned % DECIDE_EVERY_STEPS == 0:
            self._choose_drop(batch, has_learned=has_learned)
        if self._always:
            return Reason.FORCED
        if not has_learned:
            return Reason.COMPARE if self._planned // DECIDE_EVERY_STEPS % 2 else Reason.PROBE
        since_probe = self._planned - self._probed_at
        if since_probe >= PROBE_EVERY_STEPS:
            self._probed_at, since_probe = self._planned, 0
        if since_probe < PROBE_STEPS:
            return Reason.COMPARE if self._is_on else Reason.PROBE
        if self._planned - self._decided_at >= DECIDE_EVERY_STEPS or since_probe == PROBE_STEPS:
            self._decided_at = self._planned
            self._is_on = self._pays(batch)
        return Reason.PAYS if self._is_on else Reason.DOES_NOT_PAY

    def _choose_drop(self, batch: int, *, has_learned: bool) -> None:
        if not has_learned:
            self._drop_fraction = LEARNING_DROP if self._planned // DECIDE_EVERY_STEPS % 4 >= 2 else 0.0
            return
        pipeline, curve = self._pipeline(ahead=True), self._drafts.curve()
        best = choose_drop(pipeline, batch, curve)
        present = predict(pipeline, batch, curve, self._drop_fraction)
        if best.tokens_per_s > present.tokens_per_s * DROP_MARGIN:
            self._drop_fraction = best.speculation.drop

    def _pays(self, batch: int) -> bool:
        ahead = predict(self._pipeline(ahead=True), batch, self._drafts.curve(), self._drop_fraction).tokens_per_s
        split = predict(self._pipeline(ahead=False), batch).tokens_per_s
        return ahead * MARGIN > split if self._is_on else ahead > split * MARGIN

    def _pipeline(self, *, ahead: bool) -> Pipeline:
        first, *others = (line.at for line in self._model)
        if ahead:
            return Pipeline((together(first, self._draft.at), *others), stale_rows=StaleRows.SKIP_LAST)
        return Pipeline((first, *others), micro_batches=len(self._model))
