"""What the predictor says of running answers, and how it sharpens the chance that they go on.

The predictor gives, at some token of an answer, the chances that the answer ends within 4, 8, ... 64 tokens. Between
these the hazard is taken as constant; beyond the last one the answer goes on as answers of its age do. What has passed
since is conditioned on, so that an outlook stays right as it ages, and ends with its last threshold.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

REFRESH_TOKENS = 8
"""An answer's outlook is asked for anew after so many tokens."""
_CERTAIN = 1e-4
"""No prediction is more certain than this, either way."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """Of one answer.

    Attributes:
        age: tokens that the answer had when it was made.
        thresholds: tokens from then on; ascending.
        within: the chance that the answer ends within each.
    """

    age: int
    thresholds: tuple[int, ...]
    within: tuple[float, ...]

    def is_of_use(self, age: int) -> bool:
        """Whether it still says something of an answer that has ``age`` tokens."""
        return 0 <= age - self.age < self.thresholds[-1]

    def survival(self, age: int, ahead: NDArray[np.int64], beyond: NDArray[np.float64]) -> NDArray[np.float64]:
        """The chance that the answer has more than ``ahead`` tokens left, now that it has ``age``.

        Args:
            age: in tokens.
            ahead: [steps], ascending, never negative.
            beyond: that an answer that lived to the last threshold goes on until each step, [steps]; 1 before it.
        """
        passed = age - self.age
        goes_on = np.clip(1.0 - np.maximum.accumulate(np.array(self.within)), _CERTAIN, 1.0 - _CERTAIN)
        knots = np.array([0, *self.thresholds])
        log_survival = np.concatenate(([0.0], np.log(goes_on)))
        # Constant hazard between the knots: the logarithm is linear there.
        log_now, log_later = (np.interp(each, knots, log_survival) for each in (passed, passed + ahead))
        chance: NDArray[np.float64] = np.exp(log_later - log_now) * beyond
        return chance


class Outlooks:
    """The newest outlook of every answer, and when it was asked for. One per replica, for one thread."""

    def __init__(self) -> None:
        self._known: dict[str, Outlook] = {}
        self._asked: dict[str, int] = {}
        """Age at which a request was last asked for."""

    def wanted(self, ages: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
        """Those of the requests, with their ages, that are due; they count as asked for."""
        due = [
            (name, age) for name, age in ages if not 0 <= age - self._asked.get(name, -REFRESH_TOKENS) < REFRESH_TOKENS
        ]
        self._asked.update(due)
        return due

    def learn(self, name: str, age: int, thresholds: Sequence[int], within: Sequence[float]) -> None:
        """An answer of the predictor. One that is no chance for each threshold, or of a request gone, is dropped."""
        is_sound = len(thresholds) == len(within) > 0 and all(0.0 <= chance <= 1.0 for chance in within)
        if name in self._asked and is_sound and list(thresholds) == sorted(set(thresholds)):
            self._known[name] = Outlook(age, tuple(thresholds), tuple(within))

    def of(self, name: str, age: int) -> Outlook | None:
        """The outlook of an answer that has ``age`` tokens; None where nothing is known that still holds."""
        outlook = self._known.get(name)
        return outlook if outlook is not None and outlook.is_of_use(age) else None

    def forget(self, names: Iterable[str]) -> None:
        """These have ended."""
        for name in names:
            self._known.pop(name, None)
            self._asked.pop(name, None)
