"""Deals CPU cores and CUDA devices out over the stage processes of one machine."""

from collections.abc import Sequence
from typing import Literal


def split_cores(cores: Sequence[int], processes: int) -> list[list[int]]:
    """Equal, contiguous shares of ``cores``; left-over cores stay free for the other processes.

    With fewer cores than processes, the processes take turns on single cores.
    """
    share = len(cores) // processes
    if share == 0:
        return [[cores[index % len(cores)]] for index in range(processes)]
    return [list(cores[index * share : (index + 1) * share]) for index in range(processes)]


def cores_of_replica(
    wanted: Literal["auto", "all"] | list[list[int]], dealt: Sequence[list[int]], *, on_cuda: bool
) -> list[list[int] | None]:
    """Each stage process's cores; ``None``: not pinned. ``dealt`` are the replica's shares of ``split_cores``."""
    if isinstance(wanted, list):
        return list(wanted)
    if wanted == "all" or on_cuda:
        # A CUDA stage's process mostly waits for the device; pinning it would only get in the driver's way.
        return [None] * len(dealt)
    return list(dealt)


def devices_of_replica(
    wanted: Literal["auto", "cpu"] | list[int], first: int, processes: int, *, on_cuda: bool
) -> list[int | None]:
    """Each stage process's CUDA device; ``None``: no CUDA. ``first`` counts the processes of earlier replicas."""
    if isinstance(wanted, list):
        return list(wanted)
    if wanted == "cpu" or not on_cuda:
        return [None] * processes
    return list(range(first, first + processes))
