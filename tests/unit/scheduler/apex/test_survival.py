"""Survival maths against counting by hand."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.scheduler.apex.survival import censored_loss, expected_accepted, hazards_of, outcomes, survival

hazard_lists = st.lists(st.floats(0.0, 1.0), min_size=1, max_size=8)


def chances_of_lengths(hazards: list[float]) -> list[float]:
    """That exactly so many drafts are accepted, for 0 .. n, one by one."""
    chances, alive = [], 1.0
    for hazard in hazards:
        chances.append(alive * hazard)
        alive *= 1 - hazard
    return [*chances, alive]


@given(hazard_lists)
def test_survival_and_expectation_are_those_of_the_enumerated_lengths(hazards: list[float]) -> None:
    chances = chances_of_lengths(hazards)
    living = survival(np.array(hazards))
    expected = expected_accepted(np.array(hazards))
    for depth in range(len(hazards) + 1):
        by_hand = sum(min(length, depth) * chance for length, chance in enumerate(chances))
        assert expected[depth] == pytest.approx(by_hand, abs=1e-9)
        if depth:
            assert living[depth - 1] == pytest.approx(sum(chances[depth:]), abs=1e-9)


@given(st.data(), st.lists(st.floats(-30, 30), min_size=1, max_size=8))
def test_the_loss_is_the_log_of_the_enumerated_chance(data: st.DataObject, logits: list[float]) -> None:
    drafted = data.draw(st.integers(0, len(logits)))
    accepted = data.draw(st.integers(0, drafted))
    hazards = [1 / (1 + math.exp(-each)) for each in logits[:drafted]]
    chance = chances_of_lengths(hazards)[accepted]
    loss = censored_loss(np.array([logits]), np.array([accepted]), np.array([drafted]))[0]
    if chance > 1e-9:
        assert loss == pytest.approx(-math.log(chance), rel=1e-5, abs=1e-5)


def test_extreme_numbers_stay_finite() -> None:
    logits = np.array([[-1e4, 1e4, -1e4], [1e4, -1e4, 1e4]])
    assert np.isfinite(censored_loss(logits, np.array([2, 0]), np.array([3, 3]))).all()
    assert hazards_of(logits).tolist() == [[0, 1, 0], [1, 0, 1]]


def test_positions_that_were_not_reached_say_nothing() -> None:
    survived, rejected = outcomes(np.array([1, 2]), np.array([3, 2]), 4)
    assert survived.tolist() == [[True, False, False, False], [True, True, False, False]]
    assert rejected.tolist() == [[False, True, False, False], [False] * 4]


@pytest.mark.parametrize(("accepted", "drafted"), [(2, 1), (0, 5), (-1, 1)])
def test_impossible_blocks_are_refused(accepted: int, drafted: int) -> None:
    with pytest.raises(ValueError, match="0 <= accepted <= drafted <= 4"):
        outcomes(np.array([accepted]), np.array([drafted]), 4)
