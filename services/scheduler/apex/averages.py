"""Hazards from counting: what the latest blocks of the replica, and of the request itself, have shown.

For each arm and position the replica keeps how often a draft was reached and how often it was rejected there; old
blocks fade. Positions behind a rejection or behind the draft's end were not reached and count for nothing (censored).
A position of which little is known is taken to be like the one before it.

A request's own outcomes then make its hazards proportional to the replica's: with H_j = -log(1 - h_j) its chance to
survive j is exp(-theta (H_1 + ... + H_j)), and with a Gamma(PRIOR, PRIOR) prior on theta its mean after ``rejected``
rejections is (PRIOR + rejected) / (PRIOR + sum of H over all positions reached). (Own derivation: gamma frailty.)
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from services.scheduler.apex.arms import ARMS, NGRAM_ARMS, POSITIONS
from services.scheduler.apex.history import RequestHistory
from services.scheduler.apex.survival import outcomes

BLOCK_MEMORY: Final = 0.995
"""Weight that a count keeps with each later block that reaches its position."""

STEP_MEMORY: Final = 0.999
"""And with each later step, whoever drafts in it: what was not seen for long is not known any more."""

FIRST_HAZARD: Final = 0.3
"""Before anything is known; low enough that every expert gets tried."""

POSITION_PRIOR: Final = 2.0
"""Blocks that the position before counts for."""

REQUEST_PRIOR: Final = 4.0
"""Rejections that the replica's average counts for against the request's own."""

_FEWEST, _MOST = 1e-3, 1.0 - 1e-3


class Averages:
    """One per replica."""

    def __init__(self) -> None:
        self._at_risk = np.zeros((len(ARMS), POSITIONS))
        self._rejected = np.zeros((len(ARMS), POSITIONS))
        self._hazards: NDArray[np.float32] | None = None

    def observe(self, arms: NDArray[np.int64], accepted: NDArray[np.int64], drafted: NDArray[np.int64]) -> None:
        """The blocks of one step that had drafts; all [blocks], which may be none."""
        survived, rejected = outcomes(accepted, drafted, POSITIONS)
        reached = np.zeros_like(self._at_risk)
        np.add.at(reached, arms, survived | rejected)
        lost = np.zeros_like(reached)
        np.add.at(lost, arms, rejected)
        keep = STEP_MEMORY * BLOCK_MEMORY**reached
        self._at_risk = self._at_risk * keep + reached
        self._rejected = self._rejected * keep + lost
        self._hazards = None

    @property
    def hazards(self) -> NDArray[np.float32]:
        """The replica's, [arms, positions], never 0 or 1."""
        if self._hazards is None:
            self._hazards = self._estimated()
        return self._hazards

    def hazards_for(self, histories: Sequence[RequestHistory], arms: NDArray[np.int64]) -> NDArray[np.float32]:
        """The requests' own.

        Args:
            histories: of the requests.
            arms: that may draft for each of them, [requests, experts].

        Returns:
            [requests, experts, positions].
        """
        cumulative = -np.log1p(-self.hazards)
        at_risk = np.concatenate([history.at_risk for history in histories]).reshape(-1, *cumulative.shape)
        rejected = np.concatenate([history.rejected for history in histories]).reshape(-1, len(cumulative))
        exposure = (at_risk * cumulative).sum(axis=2)
        theta = (REQUEST_PRIOR + _by_expert(rejected)) / (REQUEST_PRIOR + _by_expert(exposure))
        own = np.take_along_axis(theta, arms, axis=1)
        hazards: NDArray[np.float32] = -np.expm1(-own[:, :, None] * cumulative[arms])
        return hazards

    def _estimated(self) -> NDArray[np.float32]:
        # In Python: each position needs the one before it, and so few numbers are not worth NumPy's calls.
        hazards = []
        for at_risk, rejected in zip(self._at_risk.tolist(), self._rejected.tolist(), strict=True):
            before = FIRST_HAZARD
            for reached, lost in zip(at_risk, rejected, strict=True):
                before = (lost + POSITION_PRIOR * before) / (reached + POSITION_PRIOR)
                hazards.append(before)
        return np.clip(np.array(hazards, np.float32), _FEWEST, _MOST).reshape(self._at_risk.shape)


def _by_expert(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """[requests, arms]: those of one expert share their sum, since a request is easy or hard whatever the match."""
    values = values.copy()
    values[:, :NGRAM_ARMS] = values[:, :NGRAM_ARMS].sum(axis=1, keepdims=True)
    return values
