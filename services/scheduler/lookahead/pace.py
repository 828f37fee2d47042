"""How a replica's iterations go, measured as they come: what forecasts and gains are reckoned in."""

import time
from collections.abc import Callable

from services.scheduler.line_fit import Line

_MEMORY = 0.98
"""Weight that an observation keeps with each later one."""

_ENDLESS = 1e6
"""Iterations between arrivals before a second request has come."""


class Pace:
    """One per replica; used from the engine core's thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._gained = self._decodes = 1.0
        self._rows = 1.0
        self._step_ms = Line()
        self._last_step: float | None = None
        self._last_arrival: float | None = None
        self._between_arrivals_s: float | None = None

    @property
    def tokens_per_iteration(self) -> float:
        """That a decoding request gains in one iteration. Micro-batches and misses make it less than one."""
        return self._gained / self._decodes

    def prefill_ratio(self, tokens: int) -> float:
        """What computing ``tokens`` of one request adds to an iteration, in usual iterations."""
        usual = self._step_ms.at(self._rows)
        return (self._step_ms.at(self._rows + tokens) - usual) / usual if usual > 0 else 0.0

    @property
    def iterations_between_arrivals(self) -> float:
        """At the usual pace."""
        usual_s = self._step_ms.at(self._rows) / 1e3
        if self._between_arrivals_s is None or usual_s <= 0:
            return _ENDLESS
        return self._between_arrivals_s / usual_s

    def arrived(self) -> None:
        """A request has arrived."""
        now = self._clock()
        if self._last_arrival is not None:
            gap, mean = now - self._last_arrival, self._between_arrivals_s
            self._between_arrivals_s = gap if mean is None else _MEMORY * mean + (1 - _MEMORY) * gap
        self._last_arrival = now

    def stepped(self, tokens: int, rows: int, decoding: int, gained: int) -> None:
        """An iteration came back.

        Args:
            tokens: that it computed, of prefills and decodes.
            rows: decoding requests in it.
            decoding: requests that decode, in this step or in another one.
            gained: tokens that they got from it.
        """
        now = self._clock()
        if decoding:
            self._gained = _MEMORY * self._gained + gained
            self._decodes = _MEMORY * self._decodes + decoding
            self._rows = _MEMORY * self._rows + (1 - _MEMORY) * rows
        if self._last_step is not None:
            self._step_ms.observe(tokens, 1e3 * (now - self._last_step))
        self._last_step = now

    def idle(self) -> None:
        """Nothing is left to do: the time until the next step is no step's."""
        self._last_step = None
