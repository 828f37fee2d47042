"""The bound on live sequences, and the hint."""

import pytest

from services.common.errors import RequestEndedError
from services.common.outcome import Outcome
from services.scheduler.admission import FIRST_RETRY_MS, MAX_RETRY_MS, MIN_RETRY_MS, AdmissionQueue


def test_the_bound_counts_sequences() -> None:
    queue = AdmissionQueue(2, 2)
    queue.enter(1)
    queue.enter(3)
    with pytest.raises(RequestEndedError) as caught:
        queue.enter(1)
    assert caught.value.outcome is Outcome.REJECTED_OVERLOAD
    assert caught.value.retry_after_ms == FIRST_RETRY_MS
    assert queue.live == 4
    queue.leave(3)
    queue.enter(2)


def test_an_idle_replica_takes_a_request_wider_than_its_bound() -> None:
    queue = AdmissionQueue(2, 0)
    queue.enter(64)
    with pytest.raises(RequestEndedError):
        queue.enter(1)


@pytest.mark.parametrize(("gap_s", "hint_ms"), [(0.5, 500), (0.001, MIN_RETRY_MS), (60.0, MAX_RETRY_MS)])
def test_the_hint_follows_the_pace_of_endings(gap_s: float, hint_ms: int) -> None:
    now = 0.0
    queue = AdmissionQueue(4, 4, clock=lambda: now)
    for _ in range(4):
        queue.enter(1)
        now += gap_s
        queue.leave(1)
    assert queue.retry_after_ms() == hint_ms
