"""Whose turn it is."""

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from services.scheduler.lookahead.fair_share import FairShare


def test_a_tenant_that_was_away_does_not_save_up() -> None:
    share = FairShare({})
    busy = [share.enter("busy", 10) for _ in range(5)]
    assert busy == [0, 10, 20, 30, 40]
    share.started(30)
    assert share.enter("new", 10) == 30
    assert share.enter("new", 10) == 40


def test_the_virtual_time_never_goes_back() -> None:
    share = FairShare({})
    share.started(30)
    share.started(5)
    assert share.enter("a", 1) == 30


def test_tenants_that_caught_up_are_forgotten() -> None:
    share = FairShare({})
    for number in range(100):
        share.started(share.enter(f"t{number}", 1) + number)
    assert len(share._busy_until) <= 1


@given(
    weights=st.dictionaries(st.sampled_from("abc"), st.floats(0.1, 10), min_size=3),
    costs=st.lists(st.floats(1, 100), min_size=1, max_size=20),
)
def test_backlogged_tenants_get_tokens_by_weight(weights: dict[str, float], costs: list[float]) -> None:
    """At any time their tokens over weight differ by less than one request of each (the paper's bound)."""
    share = FairShare(weights)
    queue = [(share.enter(tenant, cost), tenant, cost) for tenant in weights for cost in costs * 5]
    served = dict.fromkeys(weights, 0.0)
    left = dict.fromkeys(weights, 5 * len(costs))
    for start, tenant, cost in sorted(queue):
        share.started(start)
        served[tenant] += cost
        left[tenant] -= 1
        if not all(left.values()):
            break
        for (one, its_weight), (other, other_weight) in combinations(weights.items(), 2):
            bound = max(costs) / its_weight + max(costs) / other_weight
            assert abs(served[one] / its_weight - served[other] / other_weight) <= bound + 1e-6
