"""Names of the ledger's keys and fields in Redis. docs/ledger.md describes them.

All keys of a fleet share one hash tag, so that they live in one slot and a script may touch them together. Every
key has a time to live, so a fleet that is gone leaves nothing behind.
"""

from dataclasses import dataclass

FENCE_LEASES = 10
"""The generation fence of a replica outlives its last write by this many leases."""


@dataclass(frozen=True, slots=True)
class ReplicaKeys:
    """The keys about one replica, in the order in which scripts take them."""

    replica: str
    """Hash: the counts total, free, held, reserved, forecast_peak, running and waiting; generation; heartbeat (Unix
    milliseconds, Redis' clock); address; writer and sequence, which name the last write."""
    held: str
    """Hash: request id to blocks held."""
    reservations: str
    """Hash: reservation id to blocks promised."""
    leases: str
    """Sorted set: reservation id by expiry (Unix milliseconds, Redis' clock)."""
    index: str
    """Sorted set of the fleet: replica id by expiry of its lease (as above)."""
    fence: str
    """String: the newest generation of this replica that ever wrote."""

    def as_list(self) -> list[str]:
        """KEYS of a script about one replica."""
        return [self.replica, self.held, self.reservations, self.leases, self.index, self.fence]


@dataclass(frozen=True, slots=True)
class FleetKeys:
    """Builds the keys of one fleet."""

    fleet: str

    @property
    def prefix(self) -> str:
        """What every key of the fleet starts with."""
        return f"forerun:{{{self.fleet}}}:"

    @property
    def index(self) -> str:
        """The sorted set of live replicas."""
        return f"{self.prefix}replicas"

    def prefix_of(self, name: str) -> str:
        """Hash: replica id to the generation that has this prefix cached."""
        return f"{self.prefix}prefix:{name}"

    def replica(self, replica_id: str) -> ReplicaKeys:
        """The keys about one replica."""
        return ReplicaKeys(
            replica=f"{self.prefix}replica:{replica_id}",
            held=f"{self.prefix}held:{replica_id}",
            reservations=f"{self.prefix}reservations:{replica_id}",
            leases=f"{self.prefix}leases:{replica_id}",
            index=self.index,
            fence=f"{self.prefix}fence:{replica_id}",
        )
