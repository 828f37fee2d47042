"""A discrete simulation of speculative parallelism (SP), to check the closed forms against the machine they describe.

It moves every row of every sequence through the stages and knows no formula: drafts are drawn, dropped by confidence,
run, verified, and everything younger than a miss is flushed. Sequences never end.
"""

import math
from collections import deque
from dataclasses import dataclass, field
from random import Random

from services.common.acceptance_curve import AcceptanceCurve
from services.scheduler.sp_pipeline import Pipeline, StaleRows


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """What happened after the pipeline had filled."""

    steps: int
    time_ms: float
    tokens: int
    """Verified results; each passes a verdict on the draft that followed it."""
    dropped: int
    """Of those drafts, not run."""
    accepted: int
    """Of those drafts, run and right."""
    rows: tuple[float, ...]
    """Mean rows that each stage computed in a step."""

    @property
    def tokens_per_step(self) -> float:
        """The effective batch."""
        return self.tokens / self.steps

    @property
    def tokens_per_s(self) -> float:
        """Decode throughput."""
        return 1000.0 * self.tokens / self.time_ms


@dataclass(slots=True, eq=False)
class _Row:
    """One token of one sequence on its way through the stages, and the draft that stage 0 made from it."""

    sequence: "_Sequence"
    confidence: float
    draft_is_right: bool
    draft_runs: bool = True
    is_flushed: bool = False


@dataclass(slots=True, eq=False)
class _Sequence:
    in_flight: deque[_Row] = field(default_factory=deque)
    has_verified_token: bool = True
    """Its next row enters with a token from the last stage, not with a draft."""


@dataclass(slots=True)
class _Step:
    rows: list[_Row]
    ready_ms: float
    """When the stage that runs it next can start."""


def simulate(
    pipeline: Pipeline, batch: int, curve: AcceptanceCurve, drop: float = 0.0, *, steps: int, seed: int = 0
) -> SimulationResult:
    """Runs ``steps`` steps of ``batch`` sequences after a warm-up. Same seed, same result."""
    machine = _Machine(pipeline, batch, curve, drop, Random(seed))
    for _ in range(10 * len(pipeline.stages)):
        machine.advance()
    machine.start_counting()
    for _ in range(steps):
        machine.advance()
    return machine.result()


class _Machine:
    """Time runs in slots: in slot t, stage s works on step t - s."""

    def __init__(self, pipeline: Pipeline, batch: int, curve: AcceptanceCurve, drop: float, random: Random) -> None:
        self._pipeline, self._curve, self._drop, self._random = pipeline, curve, drop, random
        self._stages = len(pipeline.stages)
        self._slot = 0
        self._flight: deque[_Step] = deque()
        self._free_ms = [0.0] * self._stages
        self._to_drop = 0.0
        # A micro-batch's sequences arrive one after another, so that they do not all wait in the same steps.
        count = pipeline.micro_batches
        self._arriving = [deque(_Sequence() for _ in range(first, batch, count)) for first in range(count)]
        self._arrivals = math.ceil(batch / self._stages)
        self._micro_batches: list[list[_Sequence]] = [[] for _ in range(count)]
        self.start_counting()

    def start_counting(self) -> None:
        """Forgets what was counted."""
        self._counted_from_slot, self._counted_from_ms = self._slot, self._free_ms[-1]
        self._tokens = self._dropped = self._accepted = 0
        self._rows = [0] * self._stages

    def advance(self) -> None:
        """One slot: verdicts of the step that left the last stage, a new step, and every stage's work."""
        ready_ms = 0.0
        if len(self._flight) == self._stages:
            done = self._flight.pop()
            ready_ms = done.ready_ms
            for row in done.rows:
                if not row.is_flushed:
                    self._verify(row)
        members = self._arrived(self._slot % self._pipeline.micro_batches)
        self._flight.appendleft(_Step(self._next_rows(members), ready_ms))
        for stage, step in enumerate(self._flight):
            self._run(stage, step)
        self._slot += 1

    def _verify(self, row: _Row) -> None:
        """A row's own result: a token, and the verdict on what was drafted from the row."""
        sequence = row.sequence
        sequence.in_flight.popleft()
        self._tokens += 1
        self._dropped += not row.draft_runs
        if sequence.in_flight and row.draft_is_right:
            self._accepted += 1
            return
        for younger in sequence.in_flight:
            younger.is_flushed = True
        sequence.in_flight.clear()
        sequence.has_verified_token = True

    def _arrived(self, micro_batch: int) -> list[_Sequence]:
        members, arriving = self._micro_batches[micro_batch], self._arriving[micro_batch]
        for _ in range(min(self._arrivals, len(arriving))):
            members.append(arriving.popleft())
        return members

    def _next_rows(self, members: list[_Sequence]) -> list[_Row]:
        """Verified tokens, and the drafts of the micro-batch's last step that were kept."""
        entering = [each for each in members if each.has_verified_token or each.in_flight[-1].draft_runs]
        rows = [self._enter(sequence) for sequence in entering]
        # As the engine does: the fraction of a draft that a step cannot drop is dropped by a later one.
        self._to_drop += self._drop * len(rows)
        count, self._to_drop = int(self._to_drop), self._to_drop % 1
        for row in sorted(rows, key=lambda row: row.confidence)[:count]:
            row.draft_runs = False
        return rows

    def _enter(self, sequence: _Sequence) -> _Row:
        confidence = self._random.random()
        row = _Row(sequence, confidence, draft_is_right=self._random.random() < self._curve.at(confidence))
        sequence.in_flight.append(row)
        sequence.has_verified_token = False
        return row

    def _run(self, stage: int, step: _Step) -> None:
        policy = self._pipeline.stale_rows
        skips = policy is StaleRows.SKIP_ALL or (policy is StaleRows.SKIP_LAST and stage == self._stages - 1)
        rows = sum(not row.is_flushed for row in step.rows) if skips else len(step.rows)
        self._rows[stage] += rows
        start_ms = max(step.ready_ms, self._free_ms[stage])
        # A step without rows still passes through, at no cost.
        self._free_ms[stage] = start_ms + (self._pipeline.stages[stage](rows) if rows else 0.0)
        step.ready_ms = self._free_ms[stage] + self._pipeline.hop_ms

    def result(self) -> SimulationResult:
        """What was counted."""
        steps = self._slot - self._counted_from_slot
        return SimulationResult(
            steps=steps,
            time_ms=self._free_ms[-1] - self._counted_from_ms,
            tokens=self._tokens,
            dropped=self._dropped,
            accepted=self._accepted,
            rows=tuple(total / steps for total in self._rows),
        )
