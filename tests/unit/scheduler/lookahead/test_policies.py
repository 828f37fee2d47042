"""Whether the first waiting request may start."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.scheduler.lookahead.answer_lengths import AnswerLengths
from services.scheduler.lookahead.config import AdmissionConfig
from services.scheduler.lookahead.forecast import Claim, Forecast, PoolState
from services.scheduler.lookahead.gain import Delay, gain
from services.scheduler.lookahead.pace import Pace
from services.scheduler.lookahead.policies import LEAST_GAIN, Decision, Reason, make_policy

BLOCK = 16


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def steady_pace(prefill_ms_per_token: float = 1.0, arrivals_every_s: float = 0.4) -> Pace:
    """Iterations of 10 ms and 4 rows, and prefills in some."""
    clock = Clock()
    pace = Pace(clock)
    for index in range(400):
        prefill = 100 if index % 10 == 0 else 0
        clock.now += 0.01 + prefill * prefill_ms_per_token / 1e3
        pace.stepped(4 + prefill, rows=4, decoding=4, gained=4)
    for _ in range(300):
        clock.now += arrivals_every_s
        pace.arrived()
    return pace


def certain(tokens: int, left: int) -> Claim:
    return Claim(tokens, age=0, limit=left, at_least=left, held=-(-tokens // BLOCK))


def decide(
    policy: str, running: list[Claim], candidate: Claim, capacity: int, held_back_s: float = 0.0, **options: float
) -> Decision:
    made = make_policy(AdmissionConfig.model_validate({"policy": policy, "margin": 1.0, **options}))
    assert made is not None
    pool = PoolState(capacity, sum(claim.held for claim in running), BLOCK)
    return made.decide(Forecast(pool, running, AnswerLengths(1000, 100), steady_pace()), candidate, held_back_s)


def test_aggressive_is_vllm_s_own() -> None:
    assert make_policy(AdmissionConfig()) is None


@pytest.mark.parametrize("policy", ["reserve-full", "lookahead"])
def test_an_idle_replica_takes_anything(policy: str) -> None:
    assert decide(policy, [], certain(1000, 500), capacity=1).reason is Reason.IDLE


def test_reserve_full_wants_room_for_all_at_their_longest() -> None:
    running, candidate = [Claim(16, 0, 32, held=1)], Claim(16, 0, 16)
    assert decide("reserve-full", running, candidate, capacity=5).reason is Reason.FITS
    assert decide("reserve-full", running, candidate, capacity=4).reason is Reason.RESERVED
    assert decide("reserve-full", running, candidate, capacity=4, held_back_s=1e9).reason is Reason.RESERVED


def test_lookahead_starts_what_the_forecast_leaves_room_for() -> None:
    decision = decide("lookahead", [certain(160, 10)], certain(32, 40), capacity=20)
    assert decision.reason is Reason.FITS
    assert decision.peak <= 20


def test_lookahead_waits_for_the_one_that_soon_leaves() -> None:
    running = [certain(320, 12), *[certain(160, 300) for _ in range(3)]]
    decision = decide("lookahead", running, certain(320, 200), capacity=70)
    assert decision.reason is Reason.MEMORY
    assert decision.delay == 12
    assert decision.gain > LEAST_GAIN


def test_lookahead_does_not_wait_where_waiting_costs_more_than_a_preemption() -> None:
    # One block too many for one iteration, and nobody leaves for long.
    running = [certain(160, 60) for _ in range(4)]
    decision = decide("lookahead", running, certain(17, 60), capacity=59)
    assert decision.reason is Reason.DELAY_COSTS_MORE
    assert decision.gain <= LEAST_GAIN


def test_nobody_is_held_back_longer_than_the_bound() -> None:
    running = [certain(320, 12), *[certain(160, 300) for _ in range(3)]]
    for held_back_s, reason in ((1.9, Reason.MEMORY), (2.0, Reason.OVERDUE)):
        decision = decide("lookahead", running, certain(320, 200), 70, held_back_s, max_delay_s=2.0)
        assert decision.reason is reason


def test_the_margin_is_kept_free() -> None:
    running = [certain(160, 200)]
    assert decide("lookahead", running, certain(160, 10), capacity=25).reason is Reason.FITS
    assert decide("lookahead", running, certain(160, 10), capacity=25, margin=0.8).reason is not Reason.FITS


def test_gain_of_the_design() -> None:
    """Its formula, by hand: 8 running, 40 iterations between admissions, put off by 20; one eviction for 30."""
    way = Delay(running=8, between_admissions=40, delay=20, prefill=5, evictions=1, unscheduled=30)
    assert gain(way) == pytest.approx(((8 * 40 + 40 - 20) / (40 + 5)) / ((9 * 40 - 30) / (40 + 2 * 5)))


@given(
    running=st.integers(1, 100),
    between=st.floats(1, 1000),
    delay=st.integers(1, 64),
    prefill=st.floats(0, 100),
)
def test_without_evictions_a_delay_never_pays(running: int, between: float, delay: int, prefill: float) -> None:
    assert gain(Delay(running, between, delay, prefill, evictions=0, unscheduled=0)) <= 1


def test_pace_measures_prefills_and_arrivals_in_iterations() -> None:
    pace = steady_pace(prefill_ms_per_token=0.5, arrivals_every_s=0.8)
    assert pace.prefill_ratio(100) == pytest.approx(5, rel=0.1)
    assert pace.iterations_between_arrivals == pytest.approx(80, rel=0.1)
    assert Pace().prefill_ratio(10) == 0
    assert Pace().iterations_between_arrivals > 1e5
