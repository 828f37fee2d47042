"""Drift is named, with both values and the reason; agreement is silence."""

from dataclasses import asdict, replace

import pytest

from services.common.ledger import Drift, LedgerReplica, LedgerRow, ReplicaTruth, Reservation
from services.common.ledger.check import compare

ROW = LedgerRow(
    replica=LedgerReplica("r0", 7, "h:1", 100, 60, 30, 10, 0, 2, 1, 0.1),
    held_requests={"a": 20, "b": 10},
    reservations=(Reservation("q", 10, 3.0),),
)
TRUTH = ReplicaTruth("r0", 7, total=100, free=60, running=2, waiting=1, held_requests={"a": 20, "b": 10})


def test_agreement_is_no_drift() -> None:
    assert compare([ROW], [TRUTH]) == []
    assert compare([ROW], [replace(TRUTH, held_requests=None)]) == []
    assert compare([], []) == []


@pytest.mark.parametrize(
    ("truth", "what"),
    [
        (replace(TRUTH, generation=8), ["generation"]),
        (replace(TRUTH, free=70), ["free"]),
        (replace(TRUTH, total=99, running=3), ["total", "running"]),
        (replace(TRUTH, held_requests={"a": 20}), ["request b"]),
        (replace(TRUTH, held_requests={"a": 20, "b": 11, "c": 1}), ["request b", "request c"]),
        (replace(TRUTH, waiting=0), ["waiting", "reservations"]),
        (replace(TRUTH, replica_id="r1"), ["replica", "replica"]),
    ],
)
def test_every_difference_is_one_drift(truth: ReplicaTruth, what: list[str]) -> None:
    assert [drift.what for drift in compare([ROW], [truth])] == what


def test_a_sum_of_reservations_that_does_not_add_up_is_drift() -> None:
    row = replace(ROW, replica=replace(ROW.replica, reserved=11))
    [drift] = compare([row], [TRUTH])
    assert (drift.what, drift.ledger, drift.engine) == ("reserved", "11", "10")


def test_drift_prints_and_goes_into_json() -> None:
    [drift] = compare([ROW], [replace(TRUTH, free=70)])
    assert str(drift) == "r0: free: ledger 60, engine 70: last written 0.1 s ago"
    assert Drift(**asdict(drift)) == drift
