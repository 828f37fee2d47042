"""Compares the ledger with the engines' own truth."""

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from services.common.ledger.config import LedgerConfig
from services.common.ledger.reading import read_ledger
from services.common.ledger.types import LedgerRow

_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class ReplicaTruth:
    """What a replica's engine says of itself."""

    replica_id: str
    generation: int
    total: int
    free: int
    running: int
    waiting: int
    held_requests: Mapping[str, int] | None = None
    """Blocks held, by request id; None: not told, not compared."""


@dataclass(frozen=True, slots=True)
class Drift:
    """One thing that the ledger and an engine see differently. Values are text, ready to print or to write as JSON."""

    replica_id: str
    what: str
    """The count or entry at fault, such as ``free`` or ``request 7``."""
    ledger: str
    engine: str
    reason: str

    def __str__(self) -> str:
        return f"{self.replica_id}: {self.what}: ledger {self.ledger}, engine {self.engine}: {self.reason}"


async def check_ledger(config: LedgerConfig, truths: Sequence[ReplicaTruth], wait_s: float = 1.0) -> list[Drift]:
    """Drifts of the ledger from ``truths``; empty on a quiet system.

    A replica writes a moment after its step, so drifts count only if they are still there after ``wait_s``.

    Raises:
        LedgerUnavailableError: the ledger cannot be read.
    """
    deadline = time.monotonic() + wait_s
    while True:
        drifts = compare(await read_ledger(config), truths)
        if not drifts or time.monotonic() >= deadline:
            return drifts
        await asyncio.sleep(_POLL_S)


def compare(rows: Sequence[LedgerRow], truths: Sequence[ReplicaTruth]) -> list[Drift]:
    """Drifts of a reading from the engines' truth, by replica id."""
    row_of = {row.replica.replica_id: row for row in rows}
    truth_of = {truth.replica_id: truth for truth in truths}
    drifts: list[Drift] = []
    for replica_id in sorted(row_of.keys() | truth_of.keys()):
        row, truth = row_of.get(replica_id), truth_of.get(replica_id)
        if row is None:
            drifts.append(
                Drift(replica_id, "replica", "absent", "serving", "its writer has not reached Redis within its lease")
            )
        elif truth is None:
            drifts.append(
                Drift(replica_id, "replica", "live", "absent", "no engine of this name; its lease has not run out")
            )
        else:
            drifts += _compare_replica(row, truth)
    return drifts


def _compare_replica(row: LedgerRow, truth: ReplicaTruth) -> Iterator[Drift]:
    replica = row.replica
    if replica.generation != truth.generation:
        yield _drift(truth, "generation", replica.generation, truth.generation, "another start of the replica wrote it")
    for what in ("total", "free", "running", "waiting"):
        seen, true = getattr(replica, what), getattr(truth, what)
        if seen != true:
            yield _drift(truth, what, seen, true, f"last written {replica.heartbeat_age_s:.1f} s ago")
    if truth.held_requests is not None:
        yield from _compare_requests(row, truth, truth.held_requests)
    yield from _compare_reservations(row, truth)


def _compare_requests(row: LedgerRow, truth: ReplicaTruth, true: Mapping[str, int]) -> Iterator[Drift]:
    for request in sorted(row.held_requests.keys() | true.keys()):
        seen_blocks, true_blocks = row.held_requests.get(request, 0), true.get(request, 0)
        if seen_blocks != true_blocks:
            reason = "blocks leaked in the ledger" if not true_blocks else "blocks held differ"
            yield _drift(truth, f"request {request}", seen_blocks, true_blocks, reason)


def _compare_reservations(row: LedgerRow, truth: ReplicaTruth) -> Iterator[Drift]:
    promised = sum(reservation.blocks for reservation in row.reservations)
    if row.replica.reserved != promised:
        yield _drift(truth, "reserved", row.replica.reserved, promised, "not the sum of its reservations")
    leaked = len(row.reservations) - truth.waiting
    if leaked > 0:
        ids = ", ".join(reservation.reservation_id for reservation in row.reservations[:5])
        yield _drift(
            truth, "reservations", len(row.reservations), truth.waiting, f"more than requests waiting there: {ids}"
        )


def _drift(truth: ReplicaTruth, what: str, ledger: int, engine: int, reason: str) -> Drift:
    return Drift(truth.replica_id, what, str(ledger), str(engine), reason)
