"""The worst of three facts wins, and everyone hears of it once."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.common.errors import RequestEndedError
from services.common.outcome import Outcome
from services.common.types import ReplicaState
from services.scheduler.status import ReplicaStatus

ACTIONS = {
    "lose": lambda status: status.lose("l"),
    "drain": lambda status: status.drain("d"),
    "stall": lambda status: status.stall("s"),
    "recover": lambda status: status.recover(),
}


@given(st.lists(st.sampled_from(sorted(ACTIONS)), max_size=12))
def test_any_order_of_facts(actions: list[str]) -> None:
    status = ReplicaStatus()
    heard: list[ReplicaState] = []
    status.add_listener(lambda state, _reason: heard.append(state))
    states = [ReplicaState.SERVING]
    stalled = False
    for action in actions:
        ACTIONS[action](status)
        stalled = action == "stall" or (stalled and action != "recover")
        done = actions[: len(states)]
        expected = ReplicaState.SERVING
        if stalled:
            expected = ReplicaState.STALLED
        if "drain" in done:
            expected = ReplicaState.DRAINING
        if "lose" in done:
            expected = ReplicaState.LOST
        assert status.state is expected
        states.append(expected)
    changes = [after for before, after in pairwise(states) if after is not before]
    assert heard == changes
    assert status.was_lost.is_set() == ("lose" in actions)


def test_only_a_serving_replica_takes_requests() -> None:
    status = ReplicaStatus()
    status.check_serving()
    status.stall("stage 1 is silent")
    with pytest.raises(RequestEndedError, match="stage 1 is silent") as caught:
        status.check_serving()
    assert caught.value.outcome is Outcome.REJECTED_UNAVAILABLE
    assert caught.value.retry_after_ms
    status.recover()
    status.check_serving()


def test_a_removed_listener_hears_nothing() -> None:
    status = ReplicaStatus()
    heard: list[ReplicaState] = []

    def listen(state: ReplicaState, _reason: str) -> None:
        heard.append(state)

    status.add_listener(listen)
    status.remove_listener(listen)
    status.drain("x")
    assert not heard
