"""The text of synthetic devices, and drafts that are right as often as was recorded."""

from statistics import mean

import numpy as np
import pytest

from services.common.acceptance_curve import AcceptanceCurve
from services.workers.synthetic_text import RecordedDrafts, next_token, reference_answer, text_state

VOCABULARY = 259


def test_the_reference_goes_on_token_by_token() -> None:
    whole = reference_answer([1, 2, 3], 8, VOCABULARY)
    assert whole == reference_answer([1, 2, 3], 3, VOCABULARY) + reference_answer([1, 2, 3, *whole[:3]], 5, VOCABULARY)
    assert all(0 <= token < VOCABULARY for token in whole)


@pytest.mark.parametrize("wrong", [0, 40, 79])
def test_one_wrong_token_anywhere_changes_what_follows(wrong: int) -> None:
    text = np.arange(80, dtype=np.int32)
    changed = text.copy()
    changed[wrong] += 1
    assert text_state(text) != text_state(changed)


@pytest.mark.parametrize("acceptance", [(0.6,), (0.2, 1.0), (0.0,), (1.0,)])
def test_drafts_are_right_as_often_as_was_recorded(acceptance: tuple[float, ...]) -> None:
    drafts = RecordedDrafts(AcceptanceCurve(acceptance), 1, VOCABULARY)
    states = range(1, 20_001)
    right = [drafts.draft(state)[0] == next_token(state, VOCABULARY) for state in states]
    assert mean(right) == pytest.approx(mean(acceptance), abs=0.02)


def test_confident_drafts_are_right_more_often_where_that_was_recorded() -> None:
    drafts = RecordedDrafts(AcceptanceCurve((0.2, 1.0)), 1, VOCABULARY)
    made = [(state, *drafts.draft(state)) for state in range(1, 20_001)]
    confident = [token == next_token(state, VOCABULARY) for state, token, confidence in made if confidence >= 0.5]
    assert all(confident)
    assert len(confident) == pytest.approx(10_000, rel=0.05)


def test_the_same_drafts_for_the_same_text_and_others_for_another_seed() -> None:
    first, again, other = (RecordedDrafts(AcceptanceCurve((0.5,)), seed, VOCABULARY) for seed in (1, 1, 2))
    states = range(100)
    assert [first.draft(state) for state in states] == [again.draft(state) for state in states]
    assert [first.draft(state) for state in states] != [other.draft(state) for state in states]
