"""Replicas and what arrives at them, event by event."""

from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush
from itertools import count

from benchmarks.simulator.replica import Job, SimulatedReplica


class Clock:
    """The simulation's time, in seconds."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def least_loaded(replicas: Sequence[SimulatedReplica], job: Job) -> int:  # noqa: ARG001  (a choice's signature)
    """The replica with the fewest requests."""
    return min(range(len(replicas)), key=lambda index: len(replicas[index].running) + len(replicas[index].waiting))


def simulate(
    replicas: Sequence[SimulatedReplica],
    clock: Clock,
    jobs: Iterable[Job],
    choose: Callable[[Sequence[SimulatedReplica], Job], int] = least_loaded,
) -> list[Job]:
    """Runs until every job has ended.

    Args:
        replicas: that all have ``clock``.
        clock: moved on by this.
        jobs: in the order of their arrival.
        choose: the index of the replica that gets a job.

    Returns:
        The jobs in the order of their ends.
    """
    order = count()
    events: list[tuple[float, int, Callable[[], None]]] = []
    ended: list[Job] = []
    is_stepping = [False] * len(replicas)

    def at(when: float, what: Callable[[], None]) -> None:
        heappush(events, (when, next(order), what))

    def step(index: int) -> None:
        replica = replicas[index]
        is_stepping[index] = replica.has_work
        if not replica.has_work:
            return
        planned, seconds = replica.plan()

        def done() -> None:
            ended.extend(replica.finish(planned))
            step(index)

        at(clock.now + seconds, done)

    def arrive(job: Job) -> None:
        index = choose(replicas, job)
        replicas[index].submit(job)
        if not is_stepping[index]:
            step(index)

    for job in jobs:
        at(job.arrived_s, lambda job=job: arrive(job))
    while events:
        clock.now, _, what = heappop(events)
        what()
    return ended
