"""How long answers go on, from those that have ended."""

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.scheduler.lookahead.answer_lengths import REMEMBERED, AnswerLengths

LONGEST = 400


def survival(lengths: AnswerLengths, age: int, ahead: int, limit: int = LONGEST) -> float:
    """The chance that an answer of ``age`` tokens has more than ``ahead`` left."""
    return float(lengths.survival(np.array([age]), np.array([limit]), np.array([ahead]))[0, 0])


def test_before_any_answer_the_hazard_is_one_over_the_expected_length() -> None:
    lengths = AnswerLengths(LONGEST, expected=50)
    for age in (0, 30):
        assert survival(lengths, age, 0) == 1.0
        assert survival(lengths, age, 20) == pytest.approx((1 - 1 / 50) ** 20)


def test_answers_of_one_length_end_there() -> None:
    lengths = AnswerLengths(LONGEST, expected=50)
    for _ in range(REMEMBERED):
        lengths.ended(100, by_itself=True)
    assert survival(lengths, 10, 80) > 0.95
    assert survival(lengths, 10, 95) < 0.02
    assert survival(lengths, 98, 1) > 0.95
    assert survival(lengths, 99, 1) < 0.02


def test_nobody_goes_past_his_limit() -> None:
    lengths = AnswerLengths(LONGEST, expected=10_000)
    assert survival(lengths, 5, 9, limit=10) > 0.9
    assert survival(lengths, 5, 10, limit=10) == 0.0


def test_answers_that_were_cut_count_as_long_as_they_lasted() -> None:
    drawn = Random(0)
    lengths = AnswerLengths(LONGEST, expected=300)
    for _ in range(REMEMBERED):
        wanted = round(drawn.expovariate(1 / 100)) + 1
        lengths.ended(min(wanted, 60), by_itself=wanted <= 60)
    # Had the cut ones been taken for ended, all would be over at 60.
    assert survival(lengths, 0, 50) == pytest.approx(np.exp(-50 / 100), abs=0.04)
    assert survival(lengths, 40, 100) == pytest.approx(np.exp(-100 / 100), abs=0.1)


def test_old_answers_are_forgotten() -> None:
    lengths = AnswerLengths(LONGEST, expected=50)
    for length in [20] * REMEMBERED + [200] * REMEMBERED:
        lengths.ended(length, by_itself=True)
    assert survival(lengths, 0, 100) > 0.9


@given(
    ended=st.lists(st.tuples(st.integers(0, 500), st.booleans()), max_size=60),
    ages=st.lists(st.integers(0, 500), min_size=1, max_size=5),
)
def test_survival_is_a_chance_that_never_grows(ended: list[tuple[int, bool]], ages: list[int]) -> None:
    lengths = AnswerLengths(LONGEST, expected=64)
    for tokens, by_itself in ended:
        lengths.ended(tokens, by_itself=by_itself)
    chances = lengths.survival(np.array(ages), np.full(len(ages), 100), np.arange(130))
    assert ((chances >= 0) & (chances <= 1)).all()
    assert (np.diff(chances, axis=1) <= 1e-12).all()
    assert (chances[:, 0] == 1).all()
    assert (chances[:, 100:] == 0).all()
