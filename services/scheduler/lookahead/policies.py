"""Admission policies: may the first waiting request start now? One interface, for the engine and the simulator."""

from dataclasses import dataclass
from enum import StrEnum
from math import ceil
from typing import Protocol

import numpy as np

from services.scheduler.lookahead.config import AdmissionConfig
from services.scheduler.lookahead.forecast import HORIZON, Blocks, Claim, Forecast, earliest_safe
from services.scheduler.lookahead.gain import Delay, gain

LEAST_GAIN = 0.95
"""A request is put off even where that seems to cost a little: lengths are guessed, and a preemption also interrupts
whoever is reading."""


class Reason(StrEnum):
    """Why a request starts now, or is held back (the last two)."""

    IDLE = "idle"
    FITS = "fits"
    OVERDUE = "overdue"
    DELAY_COSTS_MORE = "delay-costs-more"
    MEMORY = "memory"
    RESERVED = "reserved"

    @property
    def admits(self) -> bool:
        """Whether the request starts."""
        return self not in (Reason.MEMORY, Reason.RESERVED)


@dataclass(frozen=True, slots=True)
class Decision:
    """What a policy says of one request in one iteration."""

    reason: Reason
    peak: float
    """Blocks in use at most, as forecast, if it starts now."""
    delay: int = 0
    """Iterations until the forecast leaves room for it."""
    gain: float = 1.0
    """Throughput if it is put off over that if it is not."""


class Policy(Protocol):
    """Decides for the request at the head of the queue. Only those that it admits are asked after."""

    def decide(self, forecast: Forecast, candidate: Claim, held_back_s: float) -> Decision:
        """``held_back_s``: seconds since it was first refused, 0 if it was not."""


class ReserveFull:
    """Room for everybody at their longest."""

    def decide(self, forecast: Forecast, candidate: Claim, held_back_s: float) -> Decision:  # noqa: ARG002
        """Bound by memory alone: it waits for as long as it takes."""
        most = forecast.at_their_longest(candidate)
        if not forecast.running:
            return Decision(Reason.IDLE, most)
        return Decision(Reason.FITS if most <= forecast.pool.capacity else Reason.RESERVED, most)


class Lookahead:
    """The earliest iteration from which the forecast leaves room, if putting the request off until then pays."""

    def __init__(self, config: AdmissionConfig) -> None:
        self._margin = config.margin
        self._max_delay_s = config.max_delay_s

    def decide(self, forecast: Forecast, candidate: Claim, held_back_s: float) -> Decision:
        """As ``Policy``."""
        need, room = forecast.need(candidate), self._margin * forecast.pool.capacity
        together = forecast.blocks + need
        peak = float(together[: HORIZON + 1].max())
        if not forecast.running:
            # With nothing to wait for, waiting would never end.
            return Decision(Reason.IDLE, peak)
        if peak <= room:
            return Decision(Reason.FITS, peak)
        delay = earliest_safe(forecast.blocks, need, room)
        promised = gain(self._ways(forecast, candidate, together, room, delay))
        if held_back_s >= self._max_delay_s:
            reason = Reason.OVERDUE
        else:
            reason = Reason.MEMORY if promised > LEAST_GAIN else Reason.DELAY_COSTS_MORE
        return Decision(reason, peak, delay, promised)

    @staticmethod
    def _ways(forecast: Forecast, candidate: Claim, together: Blocks, room: float, delay: int) -> Delay:
        running, ahead = len(forecast.running), together[: HORIZON + 1]
        mean_blocks = max(1.0, float(together[0]) / (running + 1))
        return Delay(
            running=running,
            between_admissions=forecast.pace.iterations_between_arrivals,
            delay=delay,
            prefill=forecast.pace.prefill_ratio(candidate.tokens),
            evictions=ceil((float(ahead.max()) - room) / mean_blocks),
            unscheduled=float(np.count_nonzero(ahead > room)),
        )


def make_policy(config: AdmissionConfig) -> Policy | None:
    """None: vLLM's own, which takes whatever fits."""
    if config.policy == "aggressive":
        return None
    return ReserveFull() if config.policy == "reserve-full" else Lookahead(config)
