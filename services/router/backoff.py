"""How long to wait before the next attempt, for loops that never give up."""

import random


class Backoff:
    """Doubles from ``first_s`` to ``longest_s``, each wait shortened by up to a half at random."""

    def __init__(self, first_s: float, longest_s: float) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self._next_s = first_s

    def next(self) -> float:
        """Seconds to wait now; the following wait is longer."""
        wait_s, self._next_s = self._next_s, min(self._longest_s, 2 * self._next_s)
        return wait_s * random.uniform(0.5, 1.0)

    def reset(self) -> None:
        """After a success: start from the shortest wait again."""
        self._next_s = self._first_s
