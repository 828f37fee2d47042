"""What the ledger's tests share: short leases, waiting with a limit, a replica or router in a process of its own."""

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from services.common.ledger import LedgerConfig, LedgerRow, LedgerView, LedgerWriter, ReplicaTotals, read_ledger

LEASE_S = 1.0


def quick(url: str, **changes: Any) -> LedgerConfig:
    """A ledger with short leases."""
    fields: dict[str, Any] = {
        "url": url,
        "lease_s": LEASE_S,
        "flush_interval_s": 0.01,
        "refresh_interval_s": 0.03,
        "connect_timeout_s": 1.0,
        "command_timeout_s": 1.0,
    }
    return LedgerConfig(**(fields | changes))


def totals(total: int, held: int = 0, running: int = 0, waiting: int = 0) -> ReplicaTotals:
    """Counts that add up."""
    return ReplicaTotals(total=total, free=total - held, held=held, running=running, waiting=waiting)


@contextmanager
def running_writer(config: LedgerConfig, generation: int = 1, replica_id: str = "r0") -> Iterator[LedgerWriter]:
    """A started writer, closed in the end."""
    writer = LedgerWriter(config, replica_id, "127.0.0.1:50051", generation)
    writer.start()
    try:
        yield writer
    finally:
        writer.close()


@asynccontextmanager
async def running_view(config: LedgerConfig) -> AsyncIterator[LedgerView]:
    """A started view, closed in the end."""
    view = LedgerView(config)
    await view.start()
    try:
        yield view
    finally:
        await view.close()


async def eventually(condition: Callable[[], bool], timeout_s: float = 2.0) -> None:
    """Waits until the condition holds; fails when it does not in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s} s"
        await asyncio.sleep(0.01)


async def row_that(
    config: LedgerConfig, condition: Callable[[LedgerRow], bool], timeout_s: float = 2.0, replica_id: str = "r0"
) -> LedgerRow:
    """The ledger's row of a replica once it satisfies the condition."""
    deadline = time.monotonic() + timeout_s
    while True:
        rows = [row for row in await read_ledger(config) if row.replica.replica_id == replica_id]
        if rows and condition(rows[0]):
            return rows[0]
        assert time.monotonic() < deadline, f"not within {timeout_s} s; last seen: {rows}"
        await asyncio.sleep(0.01)


async def gone(config: LedgerConfig, timeout_s: float = 2.0, replica_id: str = "r0") -> float:
    """Seconds until the ledger no longer has the replica."""
    began = time.monotonic()
    while any(row.replica.replica_id == replica_id for row in await read_ledger(config)):
        assert time.monotonic() - began < timeout_s, f"still there after {timeout_s} s"
        await asyncio.sleep(0.01)
    return time.monotonic() - began


@contextmanager
def python_process(program: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Runs a program text in a process of its own, killed in the end; it is ready when it printed a line."""
    process = subprocess.Popen(
        [sys.executable, "-c", program, *arguments], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline(), "the process ended before it was ready"
        yield process
    finally:
        process.kill()
        process.communicate()
