"""Cores and devices over stage processes."""

from hypothesis import given
from hypothesis import strategies as st

from services.cli.core_split import cores_of_replica, devices_of_replica, split_cores

CORES = st.lists(st.integers(0, 255), min_size=1, max_size=64, unique=True).map(sorted)


@given(CORES, st.integers(1, 40))
def test_shares_are_equal_disjoint_and_never_empty(cores: list[int], processes: int) -> None:
    shares = split_cores(cores, processes)
    assert len(shares) == processes
    assert len({len(share) for share in shares}) == 1
    assert all(share and set(share) <= set(cores) for share in shares)
    if processes <= len(cores):
        dealt = [core for share in shares for core in share]
        assert len(dealt) == len(set(dealt)) == len(cores) // processes * processes
    else:
        uses = [sum(core in share for share in shares) for core in cores]
        assert max(uses) - min(uses) <= 1


def test_the_user_decides_first() -> None:
    dealt = [[0], [1]]
    assert cores_of_replica("auto", dealt, on_cuda=False) == dealt
    assert cores_of_replica("auto", dealt, on_cuda=True) == [None, None]
    assert cores_of_replica("all", dealt, on_cuda=False) == [None, None]
    assert cores_of_replica([[4, 5], [6]], dealt, on_cuda=True) == [[4, 5], [6]]


def test_devices_are_numbered_through_over_replicas() -> None:
    assert devices_of_replica("auto", 2, 2, on_cuda=True) == [2, 3]
    assert devices_of_replica("auto", 2, 2, on_cuda=False) == [None, None]
    assert devices_of_replica("cpu", 0, 1, on_cuda=True) == [None]
    assert devices_of_replica([7], 0, 1, on_cuda=False) == [7]
