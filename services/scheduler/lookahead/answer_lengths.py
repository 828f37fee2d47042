"""How long answers go on, learned from those that have ended."""

from collections import deque

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.int64]

REMEMBERED = 1024
"""Answers; older ones are forgotten, since workloads change."""

REFRESH_EVERY = 16
"""Ended answers between two updates of the estimate."""

PRIOR_ANSWERS = 8
"""Weight of the mean hazard against the answers that reached an age."""


class AnswerLengths:
    """The chance that an answer of some age goes on, by its age in tokens.

    A discrete hazard by age (Kaplan and Meier's estimate): of the answers that reached an age, the share that ended
    there. Answers that were cut, by their limit or by the client, count as long as they lasted. Ages that few answers
    reached borrow from the mean hazard, and before any has ended that is one over the expected length.
    """

    def __init__(self, longest: int, expected: int) -> None:
        """``longest``: most tokens of any answer. ``expected``: tokens of a usual one."""
        self._longest = longest
        self._expected = expected
        self._ended: deque[tuple[int, bool]] = deque()
        self._reached = np.zeros(longest + 1)
        """Answers by the length at which they were last seen."""
        self._stopped = np.zeros(longest + 1)
        """Those of them that had come to their end."""
        self._since_refresh = 0
        self._is_stale = True
        """The estimate is made anew when it is asked for, so that it costs nothing where nobody asks."""
        self._estimate = np.empty(0)

    def ended(self, tokens: int, *, by_itself: bool) -> None:
        """An answer is over. ``by_itself``: not cut by its limit, the client or a fault."""
        tokens = min(tokens, self._longest)
        if len(self._ended) == REMEMBERED:
            self._count(*self._ended.popleft(), -1)
        self._ended.append((tokens, by_itself))
        self._count(tokens, by_itself, 1)
        self._since_refresh += 1
        if self._since_refresh >= REFRESH_EVERY or len(self._ended) < REFRESH_EVERY:
            self._since_refresh, self._is_stale = 0, True

    def survival(self, ages: Tokens, limits: Tokens, ahead: Tokens) -> NDArray[np.float64]:
        """The chance that answers have more than ``ahead`` tokens left.

        Args:
            ages: tokens that each answer has, [answers].
            limits: most tokens that each may still get, [answers].
            ahead: [steps], never negative.

        Returns:
            [answers, steps].
        """
        log_survival = self._log_survival()
        last = len(log_survival) - 1
        later = np.minimum(ages[:, None] + ahead[None, :], last)
        goes_on = np.exp(log_survival[later] - log_survival[np.minimum(ages, last)][:, None])
        return np.where(ahead[None, :] < limits[:, None], goes_on, 0.0)

    def expected(self, limit: int) -> float:
        """Tokens of a new answer that may have ``limit``, in the mean."""
        return float(np.exp(self._log_survival()[: min(limit, self._longest)]).sum())

    def _count(self, tokens: int, by_itself: bool, change: int) -> None:
        self._reached[tokens] += change
        if by_itself:
            self._stopped[tokens] += change

    def _log_survival(self) -> NDArray[np.float64]:
        """By age; [longest + 1]."""
        if self._is_stale:
            self._is_stale, self._estimate = False, self._estimated()
        return self._estimate

    def _estimated(self) -> NDArray[np.float64]:
        # An answer of n tokens that ended by itself had the choice to end at 1, 2, ... n, and took the last.
        at_risk = np.cumsum(self._reached[::-1])[::-1][1:]
        ended = self._stopped[1:]
        mean_hazard = (ended.sum() + 1) / (at_risk.sum() + self._expected)
        hazard = (ended + PRIOR_ANSWERS * mean_hazard) / (at_risk + PRIOR_ANSWERS)
        return np.concatenate(([0.0], np.cumsum(np.log1p(-np.minimum(hazard, 1 - 1e-9)))))
