"""The replica's gate: asks the policy about the head of the queue, and remembers who was held back since when."""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from services.scheduler.lookahead.answer_lengths import AnswerLengths
from services.scheduler.lookahead.audit import ForecastAudit
from services.scheduler.lookahead.forecast import Claim, Forecast, PoolState
from services.scheduler.lookahead.pace import Pace
from services.scheduler.lookahead.policies import Decision, Policy

FRESH_STEPS = 16
"""A forecast that nobody waits for is made so often, for routers."""


@dataclass(frozen=True, slots=True)
class Start:
    """A request started, for the first time or after a preemption. Times in nanoseconds since the epoch."""

    decision: Decision
    """The one that let it start."""
    capacity: int
    """KV blocks of the pool."""
    delay_s: float
    """How long the policy had held it back; not how long its blocks then were still missing."""
    held_back_ns: int | None
    """Since when; None: it was not."""
    started_ns: int
    """When it started."""


@dataclass(slots=True)
class _Held:
    """A request that was held back."""

    since: float
    since_ns: int
    until: float | None = None
    """When the policy let it go; None: not yet."""


class Gatekeeper:
    """One per replica, for one thread; the engine's and the simulator's alike."""

    def __init__(
        self,
        policy: Policy,
        lengths: AnswerLengths,
        clock: Callable[[], float] = time.monotonic,
        epoch_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """``clock``: seconds; everything that is measured here is measured by it."""
        self.lengths = lengths
        self.pace = Pace(clock)
        self._policy = policy
        self._clock = clock
        self._epoch_ns = epoch_ns
        self._audit = ForecastAudit()
        self._held_back: dict[str, _Held] = {}
        self._decided: dict[str, Decision] = {}
        """The newest decision on each request that waits and was asked after."""
        self._forecast: Forecast | None = None
        """Of the step that is being planned, if it was needed."""
        self._age = FRESH_STEPS
        """Steps since the last forecast."""
        self.peak = 0.0
        """Blocks in use at most over the next iterations, by the last forecast, with what it admitted."""

    def wants_forecast(self, *, may_start: bool) -> bool:
        """Whether ``admissible`` has anything to do in the step to be planned.

        ``may_start``: a request waits, and there is a place for it.
        """
        self._forecast = None
        self._age += 1
        return may_start or self._audit.is_due or self._age > FRESH_STEPS

    def admissible(
        self,
        pool: PoolState,
        running: Sequence[Claim],
        waiting: Iterable[tuple[str, Claim]],
        places: int,
        token_budget: int,
    ) -> list[Decision]:
        """Decides for the first requests of the queue, up to the first that is held back.

        Args:
            pool: as it is now.
            running: what runs.
            waiting: by name, in the order in which they are to start.
            places: most requests that may start.
            token_budget: tokens of the step; no more start than fit.

        Returns:
            The decisions, of which only the last may hold back.
        """
        self._forecast = forecast = Forecast(pool, running, self.lengths, self.pace)
        if self._audit.is_due and running:
            self._audit.start(forecast.blocks)
        decisions: list[Decision] = []
        for name, claim in waiting:
            if len(decisions) >= places or token_budget <= 0:
                break
            decision = self._policy.decide(forecast, claim, self._held_back_s(name))
            self._decided[name] = decision
            decisions.append(decision)
            self._note_held(name, decision)
            if not decision.reason.admits:
                break
            forecast.admit(claim)
            token_budget -= claim.tokens
        self._age, self.peak = 0, forecast.peak
        return decisions

    def started(self, name: str, claim: Claim) -> Start | None:
        """A request has started; None where nobody had decided on it."""
        if self._forecast is not None:
            self._audit.admitted(self._forecast.need(claim))
        decision, held = self._decided.pop(name, None), self._held_back.pop(name, None)
        if decision is None or self._forecast is None:
            return None
        delay_s = 0.0 if held is None or held.until is None else held.until - held.since
        since_ns = None if held is None else held.since_ns
        return Start(decision, self._forecast.pool.capacity, delay_s, since_ns, self._epoch_ns())

    def stepped(self, used: int) -> float | None:
        """An iteration is over, with ``used`` blocks in use; now and then returns forecast over observed peak."""
        return self._audit.observe(used)

    def idle(self) -> None:
        """Nothing is left to do."""
        self.peak, self._age = 0.0, FRESH_STEPS
        self.pace.idle()
        self._audit.abandon()

    def forget(self, names: Iterable[str]) -> None:
        """Requests are over."""
        for name in names:
            self._decided.pop(name, None)
            self._held_back.pop(name, None)

    def _note_held(self, name: str, decision: Decision) -> None:
        if decision.reason.admits:
            if (held := self._held_back.get(name)) is not None and held.until is None:
                held.until = self._clock()
        else:
            self._held_back.setdefault(name, _Held(self._clock(), self._epoch_ns())).until = None

    def _held_back_s(self, name: str) -> float:
        held = self._held_back.get(name)
        return 0.0 if held is None else self._clock() - held.since
