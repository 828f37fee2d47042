"""When something else than the best is tried, so that its measurements stay fresh (own design).

What has not been tried for ``STALE_STEPS`` steps is tried by one request, if what that costs by the present estimates
is saved up: every step saves a fixed share of its seconds, so exploring costs no more than that share of the replica's
time. The first ``FIRST_TRIES`` of each column, of which no estimate is to be trusted, are free. Drafts that would
hardly be reached teach nothing and are not tried; if a shallower draft shows that they would be, they are.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from services.common.expert import Expert
from services.scheduler.apex.best_depths import Best, StepTimes, plain_rate
from services.scheduler.apex.block import Block
from services.scheduler.apex.options import (
    COLUMNS,
    DEPTH_OF_COLUMN,
    NEURAL_COLUMNS,
    NGRAM_COLUMNS,
    PLAIN_COLUMN,
    Options,
)

STALE_STEPS: Final = 32
"""For so long a measurement is fresh."""

STALE_PLAIN_STEPS: Final = 4 * STALE_STEPS
"""The same for a step without drafts, which the whole batch takes."""

FIRST_TRIES: Final = 4

EAGER_STEPS, LOOK_EVERY = 256, 4
"""After so many steps it is looked only now and then for what is stale."""

LEAST_GAIN: Final = 0.05
"""Expected accepted tokens that a column must add to the next shallower one."""


@dataclass(frozen=True, slots=True)
class Trial:
    """Something else for one request, or a step without drafts for all that may take one."""

    row: int | None
    """The request; None: all."""
    column: int


class Exploration:
    """One per replica."""

    def __init__(self, share: float) -> None:
        """``share``: of the replica's time, at most; 0: never."""
        self._share = share
        self._saved_s = 0.0
        self._step = 0
        self._seen_at = np.full(COLUMNS, -np.inf)
        self._tries = np.zeros(COLUMNS, np.int64)

    def observe(self, blocks: Sequence[Block]) -> None:
        """All blocks of one step."""
        self._step += 1
        if not any(each.drafted for each in blocks):
            self._saw(np.arange(COLUMNS) == PLAIN_COLUMN)
        for columns, neural in ((NGRAM_COLUMNS, False), (NEURAL_COLUMNS, True)):
            deepest = max(
                (
                    each.drafted
                    for each in blocks
                    if each.choice.expert is not Expert.PLAIN and each.choice.expert.is_neural is neural
                ),
                default=0,
            )
            seen = np.zeros(COLUMNS, bool)
            seen[columns] = DEPTH_OF_COLUMN[columns] <= deepest
            self._saw(seen)

    def propose(self, options: Options, values: NDArray[np.float32], best: Best, times: StepTimes) -> Trial | None:
        """For a step that is about to run.

        Args:
            options: what may be chosen.
            values: expected accepted tokens by column, [requests, columns].
            best: what was chosen.
            times: of steps.
        """
        if not self._share:
            return None
        self._saved_s = min(self._saved_s + self._share * best.step_s, 2.0 * best.step_s)
        if self._step > EAGER_STEPS and self._step % LOOK_EVERY:
            return None
        age = self._step - self._seen_at
        if age.max() <= STALE_STEPS or options.is_pinned.all():
            return None
        if age[PLAIN_COLUMN] > STALE_PLAIN_STEPS and self._affords(
            PLAIN_COLUMN, best, plain_rate(options, values, times)
        ):
            return Trial(None, PLAIN_COLUMN)
        may = options.allowed & ~options.is_pinned[:, None] & (age > STALE_STEPS) & _teaches(values)
        may[:, PLAIN_COLUMN] = False
        column = int(np.where(may.any(axis=0), age, -1.0).argmax())
        if not may[:, column].any():
            return None
        row = int(np.where(may[:, column], best.rates[:, column], -np.inf).argmax())
        return Trial(row, column) if self._affords(column, best, float(best.rates[row, column])) else None

    def _affords(self, column: int, best: Best, rate: float) -> bool:
        """Whether a step at ``rate`` instead of the best one's may be run; if so, it is paid for."""
        if self._tries[column] < FIRST_TRIES:
            return True
        # A rate is not above 0 where pins waste more than they bring; then nothing can be said.
        cost_s = max(0.0, 1.0 - rate / best.rate) * best.step_s if best.rate > 0 else best.step_s
        if cost_s > self._saved_s:
            return False
        self._saved_s -= cost_s
        return True

    def _saw(self, columns: NDArray[np.bool_]) -> None:
        self._seen_at[columns] = self._step
        self._tries[columns] += 1


def _teaches(values: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Columns whose last drafts are likely enough to be reached; the first of each expert always is."""
    teaches = np.ones(values.shape, bool)
    teaches[:, 1:] = np.diff(values, axis=1) >= LEAST_GAIN
    teaches[:, [NGRAM_COLUMNS.start, NEURAL_COLUMNS.start]] = True
    return teaches
