"""What the ledger says, as plain values. Counts are KV blocks unless they are named requests."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field


class LedgerUnavailableError(Exception):
    """The ledger cannot answer now. The caller goes on without it."""


@dataclass(frozen=True, slots=True)
class ReplicaTotals:
    """A replica's own counts after a step."""

    total: int
    """Blocks in the pool."""
    free: int
    """Blocks that a new request could take now, including those that only hold evictable prefix cache."""
    held: int
    """Blocks in use by requests; shared blocks count once."""
    forecast_peak: int = 0
    """Most blocks expected to be in use within the forecast horizon; 0 where nothing forecasts."""
    running: int = 0
    """Requests that hold blocks."""
    waiting: int = 0
    """Requests in the replica's queue."""


@dataclass(frozen=True, slots=True)
class EngineState:
    """The whole of what a replica publishes: one instant of its engine."""

    totals: ReplicaTotals
    held: Mapping[str, int] = field(default_factory=dict)
    """Blocks held, by request id."""
    waiting: Mapping[str, int] = field(default_factory=dict)
    """Blocks that each queued request will need first, by reservation id (request id where it has none)."""


@dataclass(frozen=True, slots=True)
class LedgerReplica:
    """A live replica as the ledger has it."""

    replica_id: str
    generation: int
    address: str
    total: int
    free: int
    held: int
    reserved: int
    """Blocks that routers have promised to requests which the replica has not admitted yet."""
    forecast_peak: int
    running: int
    waiting: int
    heartbeat_age_s: float
    """Seconds between the replica's last write and this reading, both by Redis' clock."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """Blocks promised to a request on its way."""

    reservation_id: str
    blocks: int
    expires_in_s: float


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """Everything the ledger has about one live replica."""

    replica: LedgerReplica
    held_requests: Mapping[str, int]
    """Blocks held, by request id."""
    reservations: tuple[Reservation, ...]
    """Unexpired, the next to expire first."""


def forecast_pressure(replica: LedgerReplica, blocks: int) -> float:
    """Share of the replica's blocks that would be in use if it took ``blocks`` more; over 1: it would overflow.

    The replica's own forecast counts where it is larger, since it knows how its requests will grow.
    """
    if replica.total <= 0:
        return math.inf
    return max(replica.held + replica.reserved + blocks, replica.forecast_peak) / replica.total
