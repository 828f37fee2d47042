"""What a step costs, in seconds, by the replica's own measurements (own design; the paper learns it offline)."""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from services.common.expert import DEPTHS
from services.scheduler.apex.block import Block

Seconds = NDArray[np.float64]

MEMORY: Final = 0.98
"""Weight that a measurement keeps with each later one of as many rows; with each later one of all for drafts."""

OUTLIER: Final = 3.0
"""A measurement this many times above or below what is expected counts as that many times."""

TRUSTED: Final = 8
"""Measurements from which on outliers can be told."""

REDRAWN_EVERY: Final = 8
"""Measurements; single ones of many hardly move the curve, and drawing it takes time between two steps."""

_EDGES: Final = tuple(sorted({round(2 ** (half / 2)) for half in range(40)}))
"""Upper ends of the bins of rows: half octaves."""
_MOST_ROWS: Final = 1e7


class VerifyCost:
    """Seconds of a verifying step by its rows: a mean for each bin of rows, made to rise, and lines between them.

    Where nothing was measured the shape of ``prior_s`` goes on from what was.
    """

    def __init__(self) -> None:
        self._weight = np.zeros(len(_EDGES) + 1)
        self._rows = np.zeros(len(_EDGES) + 1)
        self._seconds = np.zeros(len(_EDGES) + 1)
        self._counts = np.zeros(len(_EDGES) + 1, np.int64)
        self._curve: tuple[Seconds, Seconds] | None = None
        self._since_drawn = 0

    def observe(self, rows: int, seconds: float) -> None:
        """A step of ``rows`` tokens took so long."""
        at = bisect_left(_EDGES, rows)
        if self._counts[at] >= TRUSTED:
            expected = self._seconds[at] / self._weight[at]
            seconds = min(max(seconds, expected / OUTLIER), expected * OUTLIER)
        self._weight[at] = MEMORY * self._weight[at] + 1.0
        self._rows[at] = MEMORY * self._rows[at] + rows
        self._seconds[at] = MEMORY * self._seconds[at] + seconds
        self._counts[at] += 1
        self._since_drawn += 1
        if self._counts[at] <= TRUSTED or self._since_drawn >= REDRAWN_EVERY:
            self._curve = None

    def at(self, rows: NDArray[np.int64]) -> Seconds:
        """Seconds of steps with so many rows; any shape."""
        if self._curve is None:
            self._curve, self._since_drawn = self._measured(), 0
        return np.asarray(np.interp(rows, *self._curve))

    def _measured(self) -> tuple[Seconds, Seconds]:
        """Rows and seconds between which lines are drawn."""
        known = self._weight > 0
        if not known.any():
            ends = np.array((0.0, _MOST_ROWS))
            return ends, prior_s(ends)
        weight = self._weight[known]
        rows, seconds = self._rows[known] / weight, _rising(self._seconds[known] / weight, np.minimum(weight, TRUSTED))
        # The prior is a line, so one more point at each end goes on in its shape.
        first, last = prior_s(np.array((0.0, _MOST_ROWS))) / prior_s(rows[[0, -1]]) * seconds[[0, -1]]
        return np.concatenate(((0.0,), rows, (_MOST_ROWS,))), np.concatenate(((first,), seconds, (last,)))


def prior_s(rows: NDArray[np.int64] | Seconds) -> Seconds:
    """Seconds of a step before anything is measured: 10 ms, twice that with 64 rows. Only its shape lives on."""
    return 0.010 + 0.010 / 64.0 * np.asarray(rows, np.float64)


class DraftCost:
    """Seconds that a step waits for the neural drafter: a fixed part, one per draft, and one per draft and request."""

    def __init__(self) -> None:
        self._moments = np.zeros((3, 3))
        self._products = np.zeros(3)
        self._count = 0
        self._parts = _DRAFT_PRIOR

    def observe(self, depth: int, requests: int, seconds: float) -> None:
        """The drafter ran to ``depth`` tokens for a step of so many requests."""
        inputs = np.array((1.0, depth, depth * requests / 64.0))
        if self._count >= TRUSTED:
            expected = float(inputs @ self._parts)
            seconds = min(max(seconds, expected / OUTLIER), expected * OUTLIER)
        self._count += 1
        self._moments = MEMORY * self._moments + np.outer(inputs, inputs)
        self._products = MEMORY * self._products + seconds * inputs
        self._parts = self._fitted()

    def at(self, requests: int) -> Seconds:
        """By depth from 0 to the deepest, which is nothing at 0; [depths + 1]."""
        fixed, a_draft, a_draft_of_64 = self._parts
        seconds = fixed + (a_draft + a_draft_of_64 * requests / 64.0) * np.arange(DEPTHS[-1] + 1)
        seconds[0] = 0.0
        return np.asarray(seconds)

    def _fitted(self) -> Seconds:
        """Least squares, pulled to the prior's proportions: depths that were all the same say nothing of a slope."""
        scale = self._products[0] / float(self._moments[0] @ _DRAFT_PRIOR)
        prior = scale * _DRAFT_PRIOR
        parts = np.linalg.solve(self._moments + np.eye(3), self._products + prior)
        return np.asarray(np.maximum(parts, 0.01 * prior))


_DRAFT_PRIOR: Final = np.array((0.0005, 0.001, 0.0005))
"""Seconds: the fixed part, a draft, a draft for 64 requests."""


class StepCost:
    """One per replica."""

    def __init__(self) -> None:
        self.verify = VerifyCost()
        self.draft = DraftCost()

    def observe(self, blocks: Sequence[Block]) -> None:
        """All blocks of one step, at least one; they say the same of it."""
        step = blocks[0]
        if step.verify_s > 0:
            self.verify.observe(step.rows, step.verify_s)
        depth = max((each.choice.depth for each in blocks if each.choice.expert.is_neural), default=0)
        if depth and step.draft_s > 0:
            self.draft.observe(min(depth, DEPTHS[-1]), step.requests, step.draft_s)


def _rising(values: Seconds, weights: Seconds) -> Seconds:
    """The closest values that never fall (pooling adjacent violators): more rows cannot take less time."""
    pools: list[tuple[float, float, int]] = []
    for value, weight in zip(values.tolist(), weights.tolist(), strict=True):
        pool = (value, weight, 1)
        while pools and pools[-1][0] > pool[0]:
            before, its_weight, size = pools.pop()
            both = its_weight + pool[1]
            pool = ((before * its_weight + pool[0] * pool[1]) / both, both, size + pool[2])
        pools.append(pool)
    return np.repeat([value for value, _, _ in pools], [size for _, _, size in pools])
