"""Keeps a model's hazards honest on a replica: a factor on the odds of rejection for each expert.

With odds' = factor * odds, log factor is moved by Newton's steps on the likelihood of the blocks as they come: by
(rejections - expected rejections) over the decayed sum of h (1 - h). (Own derivation; the paper's parameters stay
fixed while it serves, section 4.8.)
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from services.scheduler.apex.arms import POSITIONS
from services.scheduler.apex.survival import outcomes

MEMORY: Final = 0.998
"""Weight that a block keeps with each later one of the same expert."""

PRIOR: Final = 25.0
"""Positions at even odds that the model's own word counts for."""

LARGEST: Final = 3.0
"""Of log factor, either way: beyond that, the model is of another world."""


class Calibration:
    """One per replica."""

    def __init__(self, experts: int) -> None:
        self._log_factor = np.zeros(experts)
        self._information = np.zeros(experts)

    @property
    def log_factor(self) -> NDArray[np.float64]:
        """To be added to the log-odds of rejection; 0: the model is right. [experts]."""
        return self._log_factor

    def observe(
        self, expert: int, hazards: NDArray[np.float32], accepted: NDArray[np.int64], drafted: NDArray[np.int64]
    ) -> None:
        """Blocks of one step.

        Args:
            expert: index.
            hazards: that were predicted, this correction included, [blocks, positions].
            accepted: [blocks].
            drafted: [blocks].
        """
        survived, rejected = outcomes(accepted, drafted, POSITIONS)
        at_risk = survived | rejected
        surprise = float((rejected - at_risk * hazards).sum())
        information = float((at_risk * hazards * (1.0 - hazards)).sum())
        self._information[expert] = self._information[expert] * MEMORY ** len(accepted) + information
        step = surprise / (self._information[expert] + PRIOR / 4.0)
        self._log_factor[expert] = np.clip(self._log_factor[expert] + step, -LARGEST, LARGEST)
