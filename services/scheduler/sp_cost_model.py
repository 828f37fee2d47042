"""Closed forms of speculative parallelism (SP): sequences that advance, rows that run, tokens per second.

The machine (design of Spexis, arXiv 2609.34370, section 4; any depth ``P`` and selective speculation are our own
derivation). Stage 0 drafts the successor of every row it runs and runs it at once; ``P`` steps later the row's own
result says whether the draft was right. Seen from one right row, its successor enters

- one step later, when its draft is kept and right: probability ``q = (1 - d)·p'``, with ``d`` the share of drafts
  that is dropped and ``p'`` the acceptance of the others (``p' >= p``, the acceptance of all, since the least confident
  are dropped);
- ``P`` steps later otherwise: its verified token must come back first, whether the draft was wrong or dropped.

So a token takes ``q + (1 - q)·P`` steps, and a KV-bound batch of ``B`` sequences advances by ``B / (q + (1 - q)·P)`` a
step: with ``d = 0`` the paper's ``B / (p + (1 - p)·P)``, at ``d = 1`` the ``B / P`` of micro-batched PP. Since
``q <= p``, dropping never advances more sequences a step; it makes steps cheaper, for a dropped draft runs no row
while a wrong one and what is drafted from it run up to ``P - 1``. The paper's summary lets stale rows wait for their
own dropped drafts, which limits its batch to ``B / (1 + α(P - 1))`` rows; here a verdict ends a stale run at once, and
both agree where no draft is wrong.

Nothing in this needs rows to be independent: ``q`` measured over a run gives that run's batch, also when requests
differ. Assumed are endless sequences, stale drafts as confident as others, and batches large enough that the least
confident of a step are the least confident of all.

Steps that drop are uneven, and each waits for the fullest of the ``P`` beside it (own derivation). A step drops a set
share of its ``R`` rows, but only the right ones among those leave a gap behind; with ``s`` the share of stale rows
their number varies by ``V = d·R·s·(1 - s)``, and by ``u·(1 - u)`` more where ``d·R`` has a fraction ``u``, which is
carried over to the next step. A gap lasts ``P - 1`` steps, so steps ``j`` apart share ``P - 1 - j`` terms of that, and
the largest of ``P`` such sums exceeds their mean as that of ``P`` independent ones of variance ``V·(P + 1)/3`` does.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from services.common.acceptance_curve import AcceptanceCurve
from services.common.expected_maximum import expected_maximum
from services.scheduler.sp_pipeline import Pipeline, StaleRows

DROP_GRID = tuple(percent / 100 for percent in range(0, 55, 5))
"""Shares of drafts to drop that are worth trying; the paper uses 0.15 to 0.3."""

ALL_WRONG = AcceptanceCurve((0.0,))
"""For pipelines without drafts."""


@dataclass(frozen=True, slots=True)
class Speculation:
    """How sequences run ahead. ``ValueError`` for a depth below 1 or shares outside 0..1."""

    depth: int
    """P: steps until a row is verified. 1: no running ahead."""
    acceptance: float
    """p': the share of the drafts that are kept which is right."""
    drop: float = 0.0
    """d: the share of drafts that is not run."""

    def __post_init__(self) -> None:
        if self.depth < 1:
            raise ValueError(f"depth is 1 or more; got {self.depth}")
        for name in ("acceptance", "drop"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(f"{name} is a share from 0 to 1; got {getattr(self, name)}")

    @property
    def advance(self) -> float:
        """q: the share of right rows whose successor enters with the next step."""
        return (1.0 - self.drop) * self.acceptance

    @property
    def miss(self) -> float:
        """Wrong drafts that run, per right row."""
        return (1.0 - self.drop) * (1.0 - self.acceptance)

    @property
    def steps_per_token(self) -> float:
        """Mean steps from a token of a sequence to its next."""
        return self.advance + (1.0 - self.advance) * self.depth

    def stale_rows_per_miss(self, rounds: int) -> float:
        """Rows younger than a miss that enter within ``rounds`` steps; each runs only if its own draft was kept."""
        return sum((1.0 - self.drop) ** behind for behind in range(rounds))


def effective_batch(batch: float, speculation: Speculation) -> float:
    """Sequences of ``batch`` that advance by a token in a step: the tokens of a step."""
    return batch / speculation.steps_per_token


@dataclass(frozen=True, slots=True)
class StepRows:
    """The rows that enter one step of the recurrence, out of ``B`` sequences; what is left of ``B`` waits."""

    normal: float
    """n_t: entered with a verified token."""
    accepted: float
    """s^a_t: run ahead on a right draft."""
    rejected: float
    """s^r_t: run ahead in vain."""


def batch_recurrence(batch: float, speculation: Speculation, steps: int) -> list[StepRows]:
    """The paper's recurrence from ``n_0 = B``, one entry a step; the limit of ``n + s^a`` is the effective batch.

    With ``g = n + s^a`` the right rows: ``s^a_t = q·g_(t-1)``, ``n_t = (1 - q)·g_(t-P)``, and ``s^r_t`` is what is left
    of ``B`` (paper, appendix A). With drop, ``s^r_t`` sums the stale runs of the last ``P - 1`` steps' misses, and the
    rest of ``B`` waits.
    """
    rows: list[StepRows] = []
    right: list[float] = []
    for step in range(steps):
        recent = right[::-1]
        normal = batch if step == 0 else (1.0 - speculation.advance) * _at(recent, speculation.depth - 1)
        accepted = speculation.advance * _at(recent, 0)
        keeps = ((1.0 - speculation.drop) ** age * _at(recent, age) for age in range(speculation.depth - 1))
        rows.append(StepRows(normal, accepted, rejected=speculation.miss * sum(keeps)))
        right.append(normal + accepted)
    return rows


def _at(values: Sequence[float], index: int) -> float:
    return values[index] if index < len(values) else 0.0


def rows_per_step(batch: float, speculation: Speculation, pipeline: Pipeline) -> tuple[float, ...]:
    """Mean rows that each stage computes in a step.

    Of a micro-batch's ``B / PP`` sequences, per right row: the row, and for each miss the stale rows that entered
    before the verdict. A verdict comes when the right row leaves the last stage; the stale row that entered ``j``
    rounds after it has then passed ``j·PP`` stages less, so a stage that skips still runs those that had come so far.
    """
    stages = len(pipeline.stages)
    right = effective_batch(batch / _in_turn(pipeline, batch), speculation)
    rows = []
    for stage in range(stages):
        skips = pipeline.stale_rows is StaleRows.SKIP_ALL
        skips |= pipeline.stale_rows is StaleRows.SKIP_LAST and stage == stages - 1
        rounds = (stages - 1 - stage) // pipeline.micro_batches if skips else speculation.depth - 1
        rows.append(right * (1.0 + speculation.miss * speculation.stale_rows_per_miss(rounds)))
    return tuple(rows)


def _in_turn(pipeline: Pipeline, batch: float) -> float:
    """Micro-batches that are not empty."""
    return min(pipeline.micro_batches, max(batch, 1.0))


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a pipeline does in steady decoding."""

    batch: float
    """Sequences that are decoded."""
    speculation: Speculation
    tokens_per_step: float
    rows: tuple[float, ...]
    """Mean rows of a step, by stage."""
    stage_ms: tuple[float, ...]
    """Time for those rows, by stage."""
    step_ms: float
    """From step to step."""
    is_latency_bound: bool
    """The steps in flight are too few to keep any stage busy: their way through the pipeline sets the pace."""

    @property
    def tokens_per_s(self) -> float:
        """Decode throughput."""
        return 1000.0 * self.tokens_per_step / self.step_ms

    @property
    def slowest_stage(self) -> int:
        """The stage that takes longest for its rows."""
        return max(range(len(self.stage_ms)), key=self.stage_ms.__getitem__)


def predict(pipeline: Pipeline, batch: float, curve: AcceptanceCurve = ALL_WRONG, drop: float = 0.0) -> Prediction:
    """Throughput of ``batch`` sequences. PP and TP are the cases of depth 1, for which drafts do not matter.

    A step takes as long as the slowest stage takes for its rows, or as the way around the pipeline divided by the
    steps in flight. Micro-batches of ``ceil(B/PP)`` and ``floor(B/PP)`` rows take, with a latency that is linear
    between whole rows, the time of ``B/PP`` rows on average. Rows that stages skip are taken at their mean.
    """
    depth = pipeline.depth
    speculation = Speculation(depth, curve.kept(drop), drop)
    in_turn = _in_turn(pipeline, batch)
    rows = rows_per_step(batch, speculation, pipeline)
    stage_ms = tuple(latency(count) for latency, count in zip(pipeline.stages, rows, strict=True))
    around_ms = (sum(stage_ms) + len(stage_ms) * pipeline.hop_ms) / (in_turn * depth)
    tokens = effective_batch(batch / in_turn, speculation)
    spread = _rows_deviation(rows[0], tokens, speculation)
    fuller = (latency(count + spread) for latency, count in zip(pipeline.stages, rows, strict=True))
    slowest_ms = expected_maximum(stage_ms, [more - ms for more, ms in zip(fuller, stage_ms, strict=True)])
    return Prediction(
        batch=batch,
        speculation=speculation,
        tokens_per_step=tokens,
        rows=rows,
        stage_ms=stage_ms,
        step_ms=max(slowest_ms, around_ms),
        is_latency_bound=around_ms > slowest_ms,
    )


def _rows_deviation(rows: float, right: float, speculation: Speculation) -> float:
    """Standard deviation of the rows of steps that drop, as in the module's text."""
    if speculation.drop in (0.0, 1.0):
        return 0.0
    stale, dropped = 1.0 - right / rows, speculation.drop * rows
    variance = dropped * stale * (1.0 - stale) + dropped % 1.0 * (1.0 - dropped % 1.0)
    return math.sqrt(variance * (speculation.depth + 1) / 3)


def choose_drop(
    pipeline: Pipeline, batch: float, curve: AcceptanceCurve, grid: Iterable[float] = DROP_GRID
) -> Prediction:
    """The prediction with the share of dropped drafts that promises most (paper, section 5.1: α by profile)."""
    return max((predict(pipeline, batch, curve, drop) for drop in grid), key=lambda each: each.tokens_per_s)
