"""The best blocks of a whole step: the most tokens per second (own derivation).

All blocks of a step are verified together, so a replica's speed is the ratio

    (sum_i 1 + E_i - w (drafted_i - E_i)) / (verify(sum_i 1 + drafted_i) + draft(deepest neural depth))

over one column (expert and depth) for each request i. E_i is the expected accepted length and w the price of a wasted
draft token (``profiles``). It is maximised as a fractional programme (Dinkelbach, 1967): with lambda tokens per second
to be had, another row must bring lambda times the seconds that it costs, which is a price p in tokens, and each
request takes what is best at that price, for each cap on the neural depth, whose cost is paid once. The best ratio so
found is the next lambda. Step times may bend, so p is tried for several slopes of ``verify``, every outcome is judged
by the true ratio, and at the end single requests change while that helps. With a straight ``verify`` the steps of
Dinkelbach alone find the optimum; with a bent one the result is the best of those that were looked at.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from services.scheduler.apex.options import COLUMNS, NEURAL_COLUMNS, PLAIN_COLUMN, Options
from services.scheduler.apex.step_cost import Seconds, StepCost

ROUNDS: Final = 4
"""Of Dinkelbach at most; two are usual, since the last step's lambda is a good beginning."""

SWAPS: Final = 8
"""Changes of single requests at most."""

GOOD_ENOUGH: Final = 0.01
"""Prices off by so little choose well enough for single swaps to do the rest."""

_NEURAL: Final = np.arange(NEURAL_COLUMNS.start, COLUMNS)[:, None, None]
_IS_NEURAL: Final = np.arange(COLUMNS) >= NEURAL_COLUMNS.start
_NEVER: Final = -1e9


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Seconds of one step.

    Attributes:
        verify: by rows beyond one for each request, [largest + 1].
        draft: by the deepest neural depth, from 0, [depths + 1].
    """

    verify: Seconds
    draft: Seconds

    @classmethod
    def of(cls, cost: StepCost, drafted: NDArray[np.int64]) -> "StepTimes":
        """Of any choice from ``drafted``, [requests, columns]."""
        requests = len(drafted)
        rows = np.arange(requests, requests + int(drafted.max(axis=1).sum()) + 1)
        return cls(cost.verify.at(rows), cost.draft.at(requests))


@dataclass(frozen=True, slots=True, eq=False)
class Best:
    """What was chosen.

    Attributes:
        columns: of each request, [requests].
        rate: tokens per second, less the price of waste.
        step_s: seconds that the step is expected to take.
        rates: of the step, if one request took another column and the others kept theirs, [requests, columns];
            -inf where it may not.
    """

    columns: NDArray[np.int64]
    rate: float
    step_s: float
    rates: NDArray[np.float64]


def best_columns(values: NDArray[np.float32], options: Options, times: StepTimes, guess: float | None = None) -> Best:
    """Chooses.

    Args:
        values: expected accepted tokens, less the price of waste, [requests, columns].
        options: what may be chosen; at least one request.
        times: of steps.
        guess: tokens per second that are likely to be reached, to begin with.
    """
    worth = np.where(options.allowed, values, np.float32(_NEVER))
    plain = len(worth) / float(times.verify[0])
    # The price of waste may leave pinned requests less than nothing, which is no price for rows.
    rate = guess if guess is not None and guess > 0 else plain
    best_rate, best, rows = -np.inf, np.argmax(options.allowed, axis=1), 0
    for _ in range(ROUNDS):
        found_rate, found, found_rows = _at_prices(rate * _slopes(times, rows), worth, options.drafted, times)
        if found_rate > best_rate:
            best_rate, best, rows = found_rate, found, found_rows
        if abs(best_rate - rate) <= GOOD_ENOUGH * rate:
            break
        rate = best_rate if best_rate > 0 else plain
    return _with_swaps(best, worth, options.drafted, times)


def _slopes(times: StepTimes, rows: int) -> Seconds:
    """Seconds a row: in parts of the range, and around ``rows``."""
    last = len(times.verify) - 1
    if last == 0:
        return np.zeros(1)
    step = max(1, last // 16)
    parts = ((0, last // 2), (last // 2, last), (max(0, rows - step), min(last, rows + step)))
    seconds = times.verify.item
    return np.array([(seconds(end) - seconds(begin)) / max(1, end - begin) for begin, end in parts])


def _at_prices(
    prices: Seconds, worth: NDArray[np.float32], drafted: NDArray[np.int64], times: StepTimes
) -> tuple[float, NDArray[np.int64], int]:
    """The best of what requests take at each price and below each cap on the neural depth: rate, columns, rows."""
    start, request = NEURAL_COLUMNS.start, np.arange(len(worth))
    # [columns, prices, requests]; down the columns the cap on the neural depth rises from none, and a request takes
    # the column that beats all above its cap.
    scores = worth.T[:, None] - prices.astype(np.float32)[:, None] * drafted.T[:, None]
    columns = np.empty((1 + COLUMNS - start, *scores.shape[1:]), np.int64)
    columns[0] = scores[:start].argmax(axis=0)
    capped = scores[start - 1 :]
    capped[0] = scores[:start].max(axis=0)
    top = np.maximum.accumulate(capped, axis=0)
    np.multiply(top[1:] > top[:-1], _NEURAL, out=columns[1:])
    np.maximum.accumulate(columns, axis=0, out=columns)
    at = columns + request * COLUMNS
    rows = drafted.take(at)
    tokens = len(worth) + worth.take(at).sum(axis=2)
    depth = (rows * (columns >= start)).max(axis=2)
    total = rows.sum(axis=2)
    rates = tokens / (times.verify[total] + times.draft[depth])
    cap, price = divmod(int(rates.argmax()), rates.shape[1])
    return float(rates[cap, price]), columns[cap, price], int(total[cap, price])


def _with_swaps(
    columns: NDArray[np.int64], worth: NDArray[np.float32], drafted: NDArray[np.int64], times: StepTimes
) -> Best:
    """Lets the request for which that helps most change its column, while it helps."""
    columns = columns.copy()
    request = np.arange(len(columns))
    for swap in range(SWAPS + 1):
        own_rows = drafted[request, columns]
        own_worth = worth[request, columns].astype(np.float64)
        depths = np.where(columns >= NEURAL_COLUMNS.start, own_rows, 0)
        tokens, rows = len(columns) + own_worth.sum(), int(own_rows.sum())
        step_s = float(times.verify[rows] + times.draft[depths.max()])
        rate = float(tokens / step_s)
        depth = np.maximum(_deepest_of_others(depths)[:, None], drafted * _IS_NEURAL)
        rates = (tokens - own_worth)[:, None] + worth
        rates /= times.verify[(rows - own_rows)[:, None] + drafted] + times.draft[depth]
        at = int(rates.argmax())
        if swap == SWAPS or rates.flat[at] <= rate * (1 + 1e-9):
            break
        columns[at // COLUMNS] = at % COLUMNS
    rates[worth <= _NEVER] = -np.inf
    return Best(columns, rate, step_s, rates)


def _deepest_of_others(depths: NDArray[np.int64]) -> NDArray[np.int64]:
    """By request, the largest of all but its own."""
    if len(depths) == 1:
        return np.zeros_like(depths)
    second, first = np.partition(depths, -2)[-2:]
    return np.where(depths == first, second, first) if first != second else np.full_like(depths, first)


def plain_rate(options: Options, values: NDArray[np.float32], times: StepTimes) -> float:
    """Tokens per second if every request that may took a plain block, and the others their first column."""
    columns = np.where(options.allowed[:, PLAIN_COLUMN], PLAIN_COLUMN, options.allowed.argmax(axis=1))
    request = np.arange(len(columns))
    rows = options.drafted[request, columns]
    depth = np.where(columns >= NEURAL_COLUMNS.start, rows, 0).max()
    tokens = len(columns) + float(values[request, columns].sum())
    return tokens / float(times.verify[rows.sum()] + times.draft[depth])
