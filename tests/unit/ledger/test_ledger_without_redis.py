"""Nothing answers at the address: callers notice nothing but a word that the ledger is away."""

import asyncio
import logging
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from services.common.ledger import (
    LedgerConfig,
    LedgerUnavailableError,
    LedgerView,
    LedgerWriter,
    ReplicaTotals,
    ViewMetrics,
    WriterMetrics,
    check_ledger,
    read_ledger,
)
from services.common.ledger.connection import Backoff

TOTALS = ReplicaTotals(total=10, free=10, held=0)


@pytest.fixture
def nowhere() -> Iterator[LedgerConfig]:
    """A port that is taken by a socket which does not listen: connections are refused."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        yield LedgerConfig(
            url=f"redis://127.0.0.1:{closed.getsockname()[1]}/0",
            lease_s=0.3,
            flush_interval_s=0.01,
            refresh_interval_s=0.02,
            connect_timeout_s=0.2,
            command_timeout_s=0.2,
        )


def test_writer_publishes_into_the_void_and_says_so_once(
    nowhere: LedgerConfig, caplog: pytest.LogCaptureFixture
) -> None:
    registry = CollectorRegistry()
    writer = LedgerWriter(nowhere, "r0", "h:1", 1, WriterMetrics(registry))
    with caplog.at_level(logging.INFO):
        writer.start()
        slowest = 0.0
        for index in range(200):
            began = time.perf_counter()
            writer.admitted(f"reservation-{index}")
            writer.publish(TOTALS, {"a": index})
            slowest = max(slowest, time.perf_counter() - began)
            time.sleep(0.002)
        began = time.perf_counter()
        writer.close()
    assert time.perf_counter() - began < 1
    assert slowest < 0.1, "the caller waited for Redis"
    assert not writer.reachable
    assert registry.get_sample_value("forerun_ledger_writes_total", {"result": "failed"}) >= 2
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "ledger-writer" not in {thread.name for thread in threading.enumerate()}


async def test_view_starts_says_away_and_does_not_delay_requests(nowhere: LedgerConfig) -> None:
    registry = CollectorRegistry()
    view = LedgerView(nowhere, ViewMetrics(registry))
    await view.start()
    began = time.perf_counter()
    with pytest.raises(LedgerUnavailableError, match="is away"):
        await view.reserve("r0", "a", 1)
    await view.release("a")
    assert time.perf_counter() - began < 0.05
    assert not view.reachable
    assert "connecting" in view.reason
    assert view.replicas == {}
    assert view.age_s == float("inf")
    assert registry.get_sample_value("forerun_ledger_reservations_total", {"result": "unavailable"}) == 1
    await view.close()
    await view.close()


async def test_no_ledger_configured_is_the_same_as_none_there() -> None:
    config = LedgerConfig()
    writer = LedgerWriter(config, "r0", "h:1", 1)
    writer.start()
    writer.publish(TOTALS)
    writer.close()
    view = LedgerView(config)
    await view.start()
    with pytest.raises(LedgerUnavailableError, match="no ledger"):
        await view.reserve("r0", "a", 1)
    assert not await view.refresh()
    await view.close()
    with pytest.raises(LedgerUnavailableError, match="no ledger"):
        await read_ledger(config)


async def test_check_and_show_say_what_is_wrong(nowhere: LedgerConfig) -> None:
    with pytest.raises(
        LedgerUnavailableError, match=r"cannot read the ledger at redis://127.0.0.1:\d+/0: .*connecting"
    ):
        await check_ledger(nowhere, [])


async def test_a_missing_password_file_is_named(nowhere: LedgerConfig, tmp_path: Path) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    config = LedgerConfig(url=f"redis://127.0.0.1:{port}/0", password_file=tmp_path / "absent")
    with pytest.raises(LedgerUnavailableError, match="cannot read password_file"):
        await read_ledger(config)
    server.close()


@pytest.mark.parametrize("arguments", [("", "a", 1), ("r", "", 1), ("r", "a", 0), ("r", "a", -1)])
async def test_senseless_reservations_are_a_callers_fault(
    nowhere: LedgerConfig, arguments: tuple[str, str, int]
) -> None:
    view = LedgerView(nowhere)
    with pytest.raises(ValueError, match="needs a replica, an id and at least one block"):
        await view.reserve(*arguments)


def test_backoff_stays_bounded_through_a_night_of_failures() -> None:
    backoff = Backoff(base_s=0.05, cap_s=1.0)
    delays = [backoff.failed() for _ in range(5000)]
    assert delays[0] <= 0.1
    assert all(0.5 <= delay <= 1.0 for delay in delays[10:])
    assert len(set(delays[10:])) > 100, "without jitter all replicas come back at once"
    backoff.succeeded()
    assert backoff.failed() <= 0.1
