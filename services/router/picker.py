"""Which of several replicas takes a request: the best of two drawn at random and those with its beginning cached.

Always taking the least loaded sends every router's next request to the same replica until its figures move; the
better of two keeps the load nearly as even and spreads what arrives between two readings of the ledger. A replica that
has the prompt's beginning cached joins the two, and what it saves counts against its load, in one score.
"""

import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar


class Loaded(Protocol):
    """What the picker must know of a replica."""

    @property
    def replica_id(self) -> str:
        """Its name."""
        ...

    @property
    def in_flight(self) -> int:
        """Requests that this router has on it."""
        ...


R = TypeVar("R", bound=Loaded)


@dataclass(frozen=True, slots=True)
class Candidate(Generic[R]):
    """A replica that could take the request."""

    replica: R
    pressure: float
    """Expected share of its KV blocks in use, if it took the request; over 1 it would overflow."""
    saved: float = 0.0
    """What its cached prefix of the prompt is worth, in the same measure."""

    @property
    def rank(self) -> tuple[float, int]:
        """Smaller is better: pressure less what is saved, then this router's own requests on it."""
        return (self.pressure - self.saved, self.replica.in_flight)


def draw(
    replicas: Sequence[R],
    assess: Callable[[R], Candidate[R]],
    rng: random.Random,
    holders: Collection[str] = (),
) -> list[Candidate[R]]:
    """Two of the replicas at random (all, if there are fewer) and the ``holders`` among them, the best first.

    Only they are assessed.
    """
    chosen = rng.sample(replicas, 2) if len(replicas) > 2 else list(replicas)
    if holders:
        drawn = {replica.replica_id for replica in chosen}
        chosen += [each for each in replicas if each.replica_id in holders and each.replica_id not in drawn]
    # In no order, so that equals are chosen evenly.
    rng.shuffle(chosen)
    return sorted((assess(replica) for replica in chosen), key=lambda candidate: candidate.rank)
