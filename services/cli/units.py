"""The processes of one machine's system, as plain values: what to start, where it listens, how to see it is ready."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from services.common.config import ClientTlsConfig
from services.common.ledger.config import LedgerConfig


class UnitKind(StrEnum):
    """What a process is. Ready means: Redis answers PING, every other says SERVING in its health service."""

    REDIS = "redis"
    STAGE = "stage"
    SCHEDULER = "scheduler"
    ROUTER = "router"
    PREDICTOR = "predictor"


@dataclass(frozen=True, slots=True)
class Unit:
    """One process."""

    name: str
    """Unique, for people and for file names, as in ``replica-0.stage-1``."""
    kind: UnitKind
    command: tuple[str, ...]
    address: str
    """host:port that is asked whether it is ready."""
    health_service: str = ""
    """The name that its health service is asked for; empty: overall."""
    metrics: tuple[tuple[str, str], ...] = ()
    """Name and host:port of its Prometheus pages, its own first."""
    replica_id: str | None = None
    """The replica that it belongs to."""
    drain_timeout_s: float = 0.0
    """What it was told to give its work in flight when it stops."""


@dataclass(frozen=True, slots=True)
class LaunchPlan:
    """Everything ``forerun up`` starts, in the order of starting; stopping goes the other way."""

    units: tuple[Unit, ...]
    files: Mapping[Path, str]
    """Configuration files to write before anything starts; private, since they may hold keys."""
    router_grpc: str
    router_http: str | None
    http_scheme: str
    model_names: tuple[str, ...]
    traces_dir: Path | None
    """Null: traces go to ``otlp_endpoint``."""
    otlp_endpoint: str | None
    ledger: LedgerConfig
    tls: ClientTlsConfig | None
    """How to connect to any of the units."""

    def of_replica(self, replica_id: str) -> tuple[Unit, ...]:
        """The replica's processes, in the order of starting."""
        return tuple(unit for unit in self.units if unit.replica_id == replica_id)

    @property
    def replica_ids(self) -> tuple[str, ...]:
        """All replicas, in the order of the file."""
        return tuple(dict.fromkeys(unit.replica_id for unit in self.units if unit.replica_id is not None))
