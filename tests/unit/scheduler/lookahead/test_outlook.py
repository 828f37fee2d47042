"""What the predictor says, as the forecast uses it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.scheduler.lookahead.answer_lengths import AnswerLengths
from services.scheduler.lookahead.forecast import Claim, Forecast, PoolState
from services.scheduler.lookahead.outlook import REFRESH_TOKENS, Outlook, Outlooks
from services.scheduler.lookahead.pace import Pace

THRESHOLDS = (4, 8, 16, 32, 64)
AHEAD = np.arange(129)
ENDLESS = np.ones(129)

within = st.lists(st.floats(0, 1), min_size=5, max_size=5).map(sorted).map(tuple)


def test_it_is_what_the_predictor_said_at_its_thresholds() -> None:
    outlook = Outlook(10, THRESHOLDS, (0.1, 0.2, 0.5, 0.8, 0.9))
    survival = outlook.survival(10, AHEAD, ENDLESS)
    assert survival[[0, 4, 8, 16, 32, 64]] == pytest.approx([1, 0.9, 0.8, 0.5, 0.2, 0.1])
    assert survival[2] == pytest.approx(0.9**0.5), "a constant hazard between"
    assert survival[100] == pytest.approx(0.1), "and nothing known beyond"


@given(within, st.integers(0, 63))
def test_it_only_falls_and_ages_by_conditioning(chances: tuple[float, ...], passed: int) -> None:
    outlook = Outlook(10, THRESHOLDS, chances)
    fresh, aged = (outlook.survival(10 + each, AHEAD, ENDLESS) for each in (0, passed))
    assert (np.diff(aged) <= 1e-12).all()
    assert (aged[0], aged.min() > 0) == (1.0, True)
    assert aged[: 129 - passed] == pytest.approx(fresh[passed:] / fresh[passed], rel=1e-9)


def test_it_is_of_use_until_its_last_threshold() -> None:
    outlook = Outlook(10, THRESHOLDS, (0.1,) * 5)
    assert [outlook.is_of_use(age) for age in (9, 10, 73, 74)] == [False, True, True, False]


def test_requests_are_asked_for_now_and_then() -> None:
    outlooks = Outlooks()
    assert outlooks.wanted([("a", 0), ("b", 3)]) == [("a", 0), ("b", 3)]
    assert outlooks.wanted([("a", REFRESH_TOKENS - 1), ("b", 4)]) == []
    assert outlooks.wanted([("a", REFRESH_TOKENS), ("b", 5)]) == [("a", REFRESH_TOKENS)]
    assert outlooks.wanted([("b", 0)]) == [("b", 0)], "started anew"
    outlooks.forget(["a"])
    assert outlooks.wanted([("a", REFRESH_TOKENS + 1)]) == [("a", REFRESH_TOKENS + 1)]


@pytest.mark.parametrize(
    ("name", "thresholds", "chances"),
    [
        ("gone", THRESHOLDS, (0.1,) * 5),
        ("here", THRESHOLDS, (0.1,) * 4),
        ("here", (), ()),
        ("here", (8, 4), (0.1, 0.2)),
        ("here", (4, 8), (0.1, float("nan"))),
        ("here", (4, 8), (0.1, 1.5)),
    ],
)
def test_what_makes_no_sense_is_dropped(name: str, thresholds: tuple[int, ...], chances: tuple[float, ...]) -> None:
    outlooks = Outlooks()
    outlooks.wanted([("here", 0)])
    outlooks.learn(name, 0, thresholds, chances)
    assert outlooks.of(name, 0) is None


def test_an_outlook_goes_with_its_request() -> None:
    outlooks = Outlooks()
    outlooks.wanted([("here", 5)])
    outlooks.learn("here", 5, THRESHOLDS, (0.1,) * 5)
    assert outlooks.of("here", 6) == Outlook(5, THRESHOLDS, (0.1,) * 5)
    assert outlooks.of("here", 100) is None
    outlooks.forget(["here"])
    assert outlooks.of("here", 6) is None


def forecast(claim: Claim) -> Forecast:
    return Forecast(PoolState(capacity=100, used=0, block_size=1), [claim], AnswerLengths(1000, 100), Pace())


def test_the_forecast_believes_it() -> None:
    ends = Outlook(20, THRESHOLDS, (1.0,) * 5)
    goes_on = Outlook(20, THRESHOLDS, (0.0,) * 5)
    blocks = {
        name: forecast(Claim(tokens=50, age=20, limit=500, outlook=outlook)).blocks
        for name, outlook in {"ends": ends, "goes on": goes_on, "nobody knows": None}.items()
    }
    assert blocks["ends"][8] < 0.01
    assert blocks["goes on"][60] == pytest.approx(110, rel=0.01)
    assert blocks["ends"][30] < blocks["nobody knows"][30] < blocks["goes on"][30]
    unknown, later = blocks["nobody knows"], blocks["goes on"]
    assert later[128] / later[64] == pytest.approx(unknown[128] / unknown[64], rel=0.02), "beyond, as others do"


def test_a_limit_and_a_least_length_come_first() -> None:
    ends, goes_on = Outlook(0, THRESHOLDS, (1.0,) * 5), Outlook(0, THRESHOLDS, (0.0,) * 5)
    assert forecast(Claim(tokens=10, age=0, limit=30, outlook=goes_on)).blocks[30] == 0
    assert forecast(Claim(tokens=10, age=0, limit=30, at_least=20, outlook=ends)).blocks[19] == 29
