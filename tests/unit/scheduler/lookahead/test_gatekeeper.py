"""Who was held back since when, and forecasts for routers."""

from collections.abc import Iterable

import pytest

from services.scheduler.lookahead.answer_lengths import AnswerLengths
from services.scheduler.lookahead.forecast import Claim, Forecast, PoolState
from services.scheduler.lookahead.gatekeeper import FRESH_STEPS, Gatekeeper
from services.scheduler.lookahead.policies import Decision, Reason

POOL = PoolState(capacity=100, used=10, block_size=16)
CLAIM = Claim(tokens=32, age=0, limit=100)


class Scripted:
    """A policy that says what it is told to."""

    def __init__(self, reasons: Iterable[Reason]) -> None:
        self.reasons = list(reasons)
        self.held_back_s: list[float] = []

    def decide(self, forecast: Forecast, candidate: Claim, held_back_s: float) -> Decision:
        self.held_back_s.append(held_back_s)
        return Decision(self.reasons.pop(0), peak=1.0)


class Gate:
    """A gatekeeper with a clock of its own."""

    def __init__(self, *reasons: Reason) -> None:
        self.now = 0.0
        self.policy = Scripted(reasons)
        self.keeper = Gatekeeper(self.policy, AnswerLengths(1000, 100), lambda: self.now, lambda: round(self.now))

    def ask(self, *names: str, places: int = 8, budget: int = 1000) -> list[Reason]:
        assert self.keeper.wants_forecast(may_start=True)
        waiting = ((name, CLAIM) for name in names)
        return [each.reason for each in self.keeper.admissible(POOL, [CLAIM], waiting, places, budget)]


def test_nobody_passes_one_that_is_held_back() -> None:
    gate = Gate(Reason.FITS, Reason.MEMORY, Reason.FITS)
    assert gate.ask("a", "b", "c") == [Reason.FITS, Reason.MEMORY]


def test_no_more_are_asked_after_than_can_start() -> None:
    assert len(Gate(*[Reason.FITS] * 9).ask(*"abcdefghi", places=3)) == 3
    assert len(Gate(*[Reason.FITS] * 9).ask(*"abcdefghi", budget=65)) == 3, "the step's tokens are spent"
    assert Gate().ask("a", places=0) == []


def test_the_delay_is_what_the_policy_added() -> None:
    gate = Gate(Reason.MEMORY, Reason.MEMORY, Reason.OVERDUE, Reason.OVERDUE)
    for now in (10.0, 12.0, 15.0, 40.0):
        gate.now = now
        gate.ask("a")
    assert gate.policy.held_back_s == [0.0, 2.0, 5.0, 30.0]
    start = gate.keeper.started("a", CLAIM)
    assert start is not None
    assert start.decision.reason is Reason.OVERDUE
    assert start.delay_s == 5.0, "from 15 on its blocks were missing, not the policy's consent"
    assert start.held_back_ns == 10
    assert (start.started_ns, start.capacity) == (40, 100)


def test_one_that_is_preempted_begins_anew() -> None:
    gate = Gate(Reason.MEMORY, Reason.FITS, Reason.MEMORY)
    gate.ask("a")
    gate.now = 3.0
    gate.ask("a")
    assert gate.keeper.started("a", CLAIM) is not None
    gate.now = 9.0
    gate.ask("a")
    assert gate.policy.held_back_s[-1] == 0.0


def test_one_that_was_not_asked_after_starts_without_a_reason() -> None:
    gate = Gate(Reason.MEMORY)
    gate.ask("a")
    assert gate.keeper.started("b", CLAIM) is None


def test_what_is_over_is_forgotten() -> None:
    gate = Gate(Reason.MEMORY)
    gate.ask("a")
    gate.keeper.forget(["a"])
    assert gate.keeper.started("a", CLAIM) is None


def test_routers_get_a_fresh_forecast_though_nobody_waits() -> None:
    gate = Gate(Reason.FITS)
    gate.ask("a")
    with_both = gate.keeper.peak
    assert with_both > 4, "two requests of two blocks each, and growing"
    asked = [gate.keeper.wants_forecast(may_start=False) for _ in range(FRESH_STEPS + 1)]
    assert asked == [False] * FRESH_STEPS + [True]
    gate.keeper.admissible(POOL, [CLAIM], (), 0, 1000)
    assert gate.keeper.peak == pytest.approx(with_both / 2)
    gate.keeper.idle()
    assert gate.keeper.peak == 0.0
