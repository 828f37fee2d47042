"""How good forecasts were: their peak against the one that came."""

from services.scheduler.lookahead.forecast import HORIZON, Blocks


class ForecastAudit:
    """One forecast at a time, over ``HORIZON`` iterations; what is admitted meanwhile is added to it."""

    def __init__(self) -> None:
        self._forecast: Blocks | None = None
        self._iteration = 0
        self._observed = 0

    @property
    def is_due(self) -> bool:
        """No forecast is being checked."""
        return self._forecast is None

    def start(self, forecast: Blocks) -> None:
        """This one is checked from now on."""
        self._forecast, self._iteration, self._observed = forecast[: HORIZON + 1].copy(), 0, 0

    def admitted(self, need: Blocks) -> None:
        """A request has started since."""
        if self._forecast is not None:
            self._forecast[self._iteration :] += need[: HORIZON + 1 - self._iteration]

    def observe(self, used: int) -> float | None:
        """An iteration is over, and the pool has ``used`` blocks in use.

        Returns:
            After the last iteration the forecast's peak over the observed one, else None.
        """
        if self._forecast is None:
            return None
        self._iteration += 1
        self._observed = max(self._observed, used)
        if self._iteration < HORIZON:
            return None
        peak, self._forecast = float(self._forecast[1:].max()), None
        return peak / self._observed if self._observed else None

    def abandon(self) -> None:
        """The replica fell idle: nothing more to see."""
        self._forecast = None
