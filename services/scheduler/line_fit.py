"""A line through observations that come one by one."""


class Line:
    """Milliseconds over rows: a weighted least-squares fit that forgets."""

    def __init__(self, memory: float = 0.998) -> None:
        self._memory = memory
        self._weight = self._x = self._y = self._xx = self._xy = 0.0

    def observe(self, rows: float, ms: float) -> None:
        """One step of ``rows`` rows."""
        self._weight = self._memory * self._weight + 1
        self._x = self._memory * self._x + rows
        self._y = self._memory * self._y + ms
        self._xx = self._memory * self._xx + rows * rows
        self._xy = self._memory * self._xy + rows * ms

    def at(self, rows: float) -> float:
        """The fitted time, never below 0; steps that all had the same rows say nothing of a slope."""
        if not self._weight:
            return 0.0
        mean_x, mean_y = self._x / self._weight, self._y / self._weight
        spread = self._xx / self._weight - mean_x * mean_x
        slope = max(0.0, (self._xy / self._weight - mean_x * mean_y) / spread) if spread > 1e-9 else 0.0
        return max(0.0, mean_y + slope * (rows - mean_x))
