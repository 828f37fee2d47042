"""From expected accepted lengths to choices: the part that policies share.

Knows what steps cost, weighs it (``best_depths``), now and then tries something else (``exploration``), and says why.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from services.common.expert import Expert
from services.common.expert_profiles import PROFILES, ProfileName
from services.scheduler.apex.best_depths import Best, StepTimes, best_columns
from services.scheduler.apex.block import Block, Choice, Why
from services.scheduler.apex.exploration import Exploration, Trial
from services.scheduler.apex.options import COLUMNS, NEURAL_COLUMNS, PLAIN_COLUMN, Options
from services.scheduler.apex.step_cost import StepCost
from services.scheduler.apex.survival import expected_accepted


@dataclass(frozen=True, slots=True, eq=False)
class Outlook:
    """What a policy expects of a step's requests.

    Attributes:
        hazards: by expert that drafts (n-gram, neural) and position, [requests, 2, positions].
        why: where the choice comes from.
        utilities: of every column, to be maximised request by request instead of tokens per second for all,
            [requests, columns]; None: not so.
    """

    hazards: NDArray[np.float32]
    why: Why
    utilities: NDArray[np.float32] | None = None


class Scores(Mapping[tuple[Expert, int], float]):
    """What was compared for one request; made into a mapping only where somebody reads it."""

    __slots__ = ("_by_column", "_options", "_row")

    def __init__(self, options: Options, row: int, by_column: NDArray[np.floating]) -> None:
        self._options, self._row, self._by_column = options, row, by_column

    def __getitem__(self, key: tuple[Expert, int]) -> float:
        return self._as_dict()[key]

    def __iter__(self) -> Iterator[tuple[Expert, int]]:
        return iter(self._as_dict())

    def __len__(self) -> int:
        return int(self._options.allowed[self._row].sum())

    def _as_dict(self) -> dict[tuple[Expert, int], float]:
        options, row = self._options, self._row
        return {
            (options.expert_of(column), int(options.drafted[row, column])): float(self._by_column[row, column])
            for column in np.flatnonzero(options.allowed[row]).tolist()
        }


class Chooser:
    """One per replica."""

    def __init__(self, profile: ProfileName, explore: float) -> None:
        """``explore``: share of the replica's time that trying other choices may cost; 0: nothing else is tried."""
        self.cost = StepCost()
        self._waste_price = PROFILES[profile].waste_price
        self._exploration = Exploration(explore)
        self._rate: float | None = None

    def choose(self, options: Options, outlook: Outlook) -> list[Choice]:
        """For one step; at least one candidate."""
        expected = options.by_column(expected_accepted(outlook.hazards))
        prices = self._waste_prices(options)
        values = expected - prices * (options.drafted - expected) if prices.any() else expected
        times = StepTimes.of(self.cost, options.drafted)
        if outlook.utilities is None:
            best = best_columns(values, options, times, self._rate)
            self._rate, scores = best.rate, best.rates
            trial = self._exploration.propose(options, expected, best, times)
            columns, explored = _tried(best, options, trial)
        else:
            scores = np.where(options.allowed, outlook.utilities, -np.inf)
            columns, explored = scores.argmax(axis=1), np.zeros(len(scores), bool)
        return _choices(options, outlook, columns, explored, expected, scores)

    def _waste_prices(self, options: Options) -> NDArray[np.float32]:
        """By request, [requests, 1]."""
        own = self._waste_price
        asked = (each.waste_price for each in options.candidates)
        return np.array([own if price is None else price for price in asked], np.float32)[:, None]

    def observe(self, blocks: Sequence[Block]) -> None:
        """All blocks of one step; at least one."""
        self.cost.observe(blocks)
        self._exploration.observe(blocks)


def _tried(best: Best, options: Options, trial: Trial | None) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The columns with what is tried, and which requests try it."""
    explored = np.zeros(len(best.columns), bool)
    if trial is None:
        return best.columns, explored
    if trial.row is None:
        may = options.allowed[:, trial.column] & ~options.is_pinned
        explored = may & (best.columns != trial.column)
    else:
        explored[trial.row] = best.columns[trial.row] != trial.column
    return np.where(explored, trial.column, best.columns), explored


def _choices(
    options: Options,
    outlook: Outlook,
    columns: NDArray[np.int64],
    explored: NDArray[np.bool_],
    expected: NDArray[np.float32],
    scores: NDArray[np.floating],
) -> list[Choice]:
    request = np.arange(len(columns))
    drafts = options.drafted[request, columns]
    accepted = expected[request, columns].tolist()
    hazards = outlook.hazards[request, (columns >= NEURAL_COLUMNS.start).astype(np.int64)]
    matches = np.where((columns > PLAIN_COLUMN) & (columns < NEURAL_COLUMNS.start), options.found[:, 0], 0).tolist()
    experts = [options.expert_of(column) for column in range(COLUMNS)]
    reasons = _reasons(options, outlook.why, columns, explored)
    return [
        Choice(
            experts[column], depth, reasons[row], accepted[row], Scores(options, row, scores), matches[row],
            hazards[row] if depth else None,
        )
        for row, (column, depth) in enumerate(zip(columns.tolist(), drafts.tolist(), strict=True))
    ]  # fmt: skip


def _reasons(options: Options, why: Why, columns: NDArray[np.int64], explored: NDArray[np.bool_]) -> list[Why]:
    reasons = [why] * len(columns)
    for row in np.flatnonzero(explored).tolist():
        reasons[row] = Why.EXPLORED
    for row in np.flatnonzero(options.is_pinned).tolist():
        reasons[row] = Why.ROUTED if options.candidates[row].is_routed else Why.PINNED
    for row in np.flatnonzero(~options.can_draft() & ~options.wants_plain).tolist():
        reasons[row] = Why.NOT_POSSIBLE
    return reasons
