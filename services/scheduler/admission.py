"""The bound on what a replica has taken on, and the hint to those it refuses."""

import time
from collections.abc import Callable

from services.common.errors import overloaded

MIN_RETRY_MS, MAX_RETRY_MS = 100, 10_000
FIRST_RETRY_MS = 1000
"""Before anything has finished, nothing is known about how fast things finish."""

_SMOOTHING = 0.2


class AdmissionQueue:
    """Counts live sequences (a request of n choices is n). The engine itself orders those that wait."""

    def __init__(self, max_running: int, max_waiting: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.capacity = max_running + max_waiting
        """Sequences that may be live at once."""
        self.live = 0
        """Sequences taken on and not ended yet."""
        self._clock = clock
        self._last_leave: float | None = None
        self._seconds_per_leave: float | None = None

    def enter(self, sequences: int) -> None:
        """Takes on a request, or raises ``RequestEndedError`` (REJECTED_OVERLOAD) at once.

        An idle replica takes any request, so that none is too wide for ever.
        """
        if self.live and self.live + sequences > self.capacity:
            raise overloaded(f"{self.live} of {self.capacity} places are taken", self.retry_after_ms())
        self.live += sequences

    def leave(self, sequences: int) -> None:
        """A request that had entered has ended."""
        self.live -= sequences
        now = self._clock()
        if self._last_leave is not None:
            gap = (now - self._last_leave) / sequences
            mean = self._seconds_per_leave
            self._seconds_per_leave = gap if mean is None else mean + _SMOOTHING * (gap - mean)
        self._last_leave = now

    def retry_after_ms(self) -> int:
        """About when the next place comes free."""
        if self._seconds_per_leave is None:
            return FIRST_RETRY_MS
        return round(min(max(self._seconds_per_leave * 1000, MIN_RETRY_MS), MAX_RETRY_MS))
