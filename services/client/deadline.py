"""The time left for a call with all its retries."""

import time


class Deadline:
    """Counts from its making; None is no deadline."""

    def __init__(self, timeout_s: float | None) -> None:
        self._ends = None if timeout_s is None else time.monotonic() + timeout_s

    def remaining_s(self) -> float | None:
        """Seconds left, never negative; None without a deadline."""
        return None if self._ends is None else max(0.0, self._ends - time.monotonic())

    def cut(self, wait_s: float) -> float:
        """A wait, no longer than what is left."""
        remaining_s = self.remaining_s()
        return wait_s if remaining_s is None else min(wait_s, remaining_s)
