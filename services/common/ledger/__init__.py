"""The KV ledger in Redis: replicas write their block counts, routers read them and reserve. See docs/ledger.md.

Configuration and plain values are here at once; whatever talks to Redis is imported at its first use, since the
Redis client takes longer to import than a command-line tool may take to start.
"""

import importlib
from typing import TYPE_CHECKING, Any

from services.common.ledger.config import LedgerConfig
from services.common.ledger.types import (
    EngineState,
    LedgerReplica,
    LedgerRow,
    LedgerUnavailableError,
    ReplicaTotals,
    Reservation,
    forecast_pressure,
)

if TYPE_CHECKING:
    from services.common.ledger.check import Drift, ReplicaTruth, check_ledger
    from services.common.ledger.metrics import ViewMetrics, WriterMetrics
    from services.common.ledger.reading import read_ledger
    from services.common.ledger.view import LedgerView
    from services.common.ledger.writer import LedgerWriter

__all__ = [
    "Drift",
    "EngineState",
    "LedgerConfig",
    "LedgerReplica",
    "LedgerRow",
    "LedgerUnavailableError",
    "LedgerView",
    "LedgerWriter",
    "ReplicaTotals",
    "ReplicaTruth",
    "Reservation",
    "ViewMetrics",
    "WriterMetrics",
    "check_ledger",
    "forecast_pressure",
    "read_ledger",
]

_HOMES = {
    "Drift": "check",
    "ReplicaTruth": "check",
    "check_ledger": "check",
    "ViewMetrics": "metrics",
    "WriterMetrics": "metrics",
    "read_ledger": "reading",
    "LedgerView": "view",
    "LedgerWriter": "writer",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
