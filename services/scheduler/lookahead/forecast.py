"""The KV pool's use over the next iterations, in expectation.

A request that has n tokens and gains g of them until an iteration holds ceil((n + g) / block size) blocks then, if it
still runs; else none. Summed over the live requests that is the forecast (design section 5). How many tokens an
iteration brings is measured, whatever speculation does, so it holds for every kind of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from services.scheduler.lookahead.answer_lengths import AnswerLengths
from services.scheduler.lookahead.outlook import Outlook
from services.scheduler.lookahead.pace import Pace

HORIZON = 64
"""Iterations that an admission can be put off by, and that it is looked ahead from then on."""

_ITERATIONS = np.arange(2 * HORIZON + 1)

Blocks = NDArray[np.float64]
"""KV blocks now and at each of the next 2 ``HORIZON`` iterations."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A running or waiting request, as the pool sees it."""

    tokens: int
    """It has, prompt and answer: what its keys and values are needed for."""
    age: int
    """Tokens of its answer."""
    limit: int
    """Most tokens that its answer may still get."""
    at_least: int = 0
    """Tokens that its answer gets for certain, unless it is aborted."""
    held: int = 0
    """KV blocks it holds; 0 while it waits."""
    outlook: Outlook | None = None
    """What the predictor says of it; None: nothing that still holds."""


@dataclass(frozen=True, slots=True)
class PoolState:
    """The KV pool now."""

    capacity: int
    """Blocks in all."""
    used: int
    """Blocks that are not free."""
    block_size: int
    """Tokens a block holds."""
    groups: int = 1
    """Kinds of layers that each keep blocks of their own for the same tokens."""

    def blocks_of(self, tokens: NDArray[np.int64]) -> NDArray[np.int64]:
        """That so many tokens of one request take."""
        return self.groups * -(-tokens // self.block_size)


class Forecast:
    """The pool's expected use, by what runs and what is admitted to it."""

    def __init__(self, pool: PoolState, running: Sequence[Claim], lengths: AnswerLengths, pace: Pace) -> None:
        """``running``: in no order."""
        self.pool = pool
        self.pace = pace
        self.running = list(running)
        self._lengths = lengths
        self.blocks: Blocks = self._expected(self.running, pool.used)

    def need(self, candidate: Claim) -> Blocks:
        """What a request would use from its admission on."""
        return self._expected([candidate], 0)

    def admit(self, candidate: Claim) -> None:
        """The request starts now."""
        self.running.append(candidate)
        self.blocks = self.blocks + self.need(candidate)

    @property
    def peak(self) -> float:
        """Blocks in use at most, from now to the horizon."""
        return float(self.blocks[: HORIZON + 1].max())

    def at_their_longest(self, *more: Claim) -> int:
        """Blocks if every request, and ``more``, went on to its limit."""
        most = np.array([claim.tokens + claim.limit for claim in (*self.running, *more)], np.int64)
        return int(self.pool.blocks_of(most).sum())

    def _expected(self, claims: Sequence[Claim], used: int) -> Blocks:
        if not claims:
            return np.zeros(len(_ITERATIONS))
        rows = np.array([(each.tokens, each.age, each.limit, each.at_least, each.held) for each in claims], np.int64)
        tokens, ages, limits, at_least, held = rows.T
        gained = np.floor(self.pace.tokens_per_iteration * _ITERATIONS).astype(np.int64)
        alive = self._lengths.survival(ages, limits, gained)
        for row, claim in enumerate(claims):
            if claim.outlook is not None:
                alive[row] = self._predicted(claim, claim.outlook, gained)
        alive = np.where(gained < at_least[:, None], 1.0, alive)
        blocks = np.maximum(self.pool.blocks_of(tokens[:, None] + gained), held[:, None])
        # Blocks that several requests share are held more than once; they leave with their holders, here evenly.
        shared = max(0, int(held.sum()) - used) if used else 0
        by_request: NDArray[np.float64] = alive * (blocks - shared * held[:, None] / max(1, held.sum()))
        total: Blocks = by_request.sum(axis=0)
        return total

    def _predicted(self, claim: Claim, outlook: Outlook, ahead: NDArray[np.int64]) -> NDArray[np.float64]:
        """The chance that a request goes on, by the predictor as far as that sees; [steps]."""
        last = outlook.age + outlook.thresholds[-1]
        later = np.maximum(claim.age + ahead - last, 0)
        (beyond,) = self._lengths.survival(np.array([last]), np.array([later[-1] + 1]), later)
        return np.where(ahead < claim.limit, outlook.survival(claim.age, ahead, beyond), 0.0)


def earliest_safe(forecast: Blocks, need: Blocks, room: float) -> int:
    """Iterations until a request can start such that the pool stays within ``room`` from then on; at most ``HORIZON``.

    Args:
        forecast: of what runs.
        need: of the request, from its admission on.
        room: in blocks.
    """
    windows = sliding_window_view(forecast, HORIZON + 1) + need[: HORIZON + 1]
    is_safe = (windows <= room).all(axis=1)
    return int(is_safe.argmax()) if is_safe.any() else HORIZON
