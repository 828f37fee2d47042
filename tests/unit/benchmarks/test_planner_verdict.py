"""Errors and picks from predictions and measurements."""

import pytest

from benchmarks.planner.verdict import Outcome, judge
from services.scheduler.sp_split import Split

PP, SP = Split(pp=2), Split(sp=2)


def test_errors_are_against_the_median_and_counted_by_their_size() -> None:
    verdict = judge([Outcome(PP, 2, 90.0, (100.0, 80.0, 120.0)), Outcome(SP, 2, 104.0, (100.0,))])
    assert verdict.error_max == pytest.approx(0.1)
    assert verdict.error_mean == pytest.approx(0.07)


def test_a_pick_is_best_tied_or_missed() -> None:
    outcomes = [
        Outcome(PP, 2, 90.0, (95.0, 97.0)),
        Outcome(SP, 2, 104.0, (100.0, 102.0)),
        # Picked for 105, and slower than the other by less than the rounds differ.
        Outcome(PP, 4, 105.0, (100.0, 104.0)),
        Outcome(SP, 4, 104.0, (103.0, 107.0)),
        Outcome(PP, 8, 105.0, (90.0, 91.0)),
        Outcome(SP, 8, 104.0, (103.0, 107.0)),
    ]
    verdict = judge(outcomes)
    assert verdict.picks_best == pytest.approx(1 / 3)
    assert verdict.picks_best_or_tied == pytest.approx(2 / 3)
    table = verdict.table().splitlines()
    assert [line.split("|")[-2].strip() for line in table[2:]] == ["best", "tied", "missed"]
    assert "| 8 | PP 2, TP 1, SP 1 | 105 | 90 | PP 1, TP 1, SP 2 | 105 | missed |" in table
