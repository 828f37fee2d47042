"""Which of several replicas takes a request: the better of two drawn at random.

Always taking the least loaded sends every router's next request to the same replica until its figures move; the
better of two keeps the load nearly as even and spreads what arrives between two readings of the ledger.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar


class Loaded(Protocol):
    """What the picker must know of a replica."""

    @property
    def in_flight(self) -> int:
        """Requests that this router has on it."""
        ...


R = TypeVar("R", bound=Loaded)


@dataclass(frozen=True, slots=True)
class Candidate(Generic[R]):
    """A replica that could take the request, and how full it would then be."""

    replica: R
    pressure: float
    """Expected share of its KV blocks in use; over 1 it would overflow."""

    @property
    def rank(self) -> tuple[float, int]:
        """Smaller is better: pressure, then this router's own requests on it."""
        return (self.pressure, self.replica.in_flight)


def draw_two(replicas: Sequence[R], pressure: Callable[[R], float], rng: random.Random) -> list[Candidate[R]]:
    """Two of the replicas at random (all, if there are fewer), the better first. Only they are asked for pressure."""
    chosen = rng.sample(replicas, 2) if len(replicas) > 2 else replicas
    drawn = [Candidate(replica, pressure(replica)) for replica in chosen]
    if len(drawn) == 2 and drawn[0].rank == drawn[1].rank:
        rng.shuffle(drawn)
    return sorted(drawn, key=lambda candidate: candidate.rank)
