"""A replica's entry against a real Redis: true while the replica lives, gone when it does not."""

import asyncio
import logging
import signal

import pytest
import redis
from prometheus_client import CollectorRegistry

from services.common.ledger import LedgerWriter, ReplicaTruth, WriterMetrics, check_ledger, read_ledger
from tests.integration.ledger_support import LEASE_S, gone, python_process, quick, row_that, running_writer, totals
from tests.support.redis_server import RedisServer

WRITER_PROGRAM = """
import sys, time
from tests.integration.ledger_support import quick, totals
from services.common.ledger import LedgerWriter
writer = LedgerWriter(quick(sys.argv[1]), "r0", "127.0.0.1:50051", 1)
writer.start()
writer.publish(totals(100, 30, 1, 1), {"a": 30}, {"queued": 5})
while not writer.reachable:
    time.sleep(0.01)
print("ready", flush=True)
time.sleep(60)
"""


@pytest.fixture
def clean_url(shared_redis_server: RedisServer) -> str:
    """A Redis without any keys."""
    redis.Redis.from_url(shared_redis_server.url).flushall()
    return shared_redis_server.url


async def test_the_newest_state_is_written_and_old_requests_leave(clean_url: str) -> None:
    config = quick(clean_url)
    with running_writer(config) as writer:
        writer.publish(totals(100, 30, 2), {"a": 20, "b": 10})
        row = await row_that(config, lambda row: row.held_requests == {"a": 20, "b": 10})
        assert (row.replica.total, row.replica.free, row.replica.held, row.replica.running) == (100, 70, 30, 2)
        assert (row.replica.generation, row.replica.address) == (1, "127.0.0.1:50051")
        writer.publish(totals(100, 12, 2), {"b": 11, "c": 1})
        await row_that(config, lambda row: row.held_requests == {"b": 11, "c": 1})
        truth = ReplicaTruth("r0", 1, total=100, free=88, running=2, waiting=0, held_requests={"b": 11, "c": 1})
        assert await check_ledger(config, [truth]) == []


async def test_a_silent_replica_lives_by_heartbeats_and_takes_its_entry_along(clean_url: str) -> None:
    config = quick(clean_url)
    with running_writer(config) as writer:
        writer.publish(totals(10, waiting=1), waiting={"queued": 3})
        await row_that(config, lambda row: row.replica.reserved == 3)
        for _ in range(8):
            await asyncio.sleep(LEASE_S / 4)
            row = await row_that(config, lambda row: True)
            assert row.replica.heartbeat_age_s < LEASE_S / 2
            assert [r.reservation_id for r in row.reservations] == ["queued"], "renewed while it waits"
    assert await read_ledger(config) == []
    assert redis.Redis.from_url(clean_url, decode_responses=True).keys() == ["forerun:{default}:fence:r0"]


async def test_a_killed_replica_is_gone_after_its_lease(clean_url: str) -> None:
    config = quick(clean_url)
    with python_process(WRITER_PROGRAM, clean_url) as process:
        await row_that(config, lambda row: row.held_requests == {"a": 30} and row.replica.reserved == 5)
        process.send_signal(signal.SIGKILL)
        assert await gone(config) < LEASE_S + 0.3
    keys = redis.Redis.from_url(clean_url, decode_responses=True).keys()
    assert set(keys) <= {"forerun:{default}:fence:r0"}


async def test_an_older_generation_is_refused_and_told_once(clean_url: str, caplog: pytest.LogCaptureFixture) -> None:
    config = quick(clean_url)
    registry = CollectorRegistry()
    # Above 2**53, where Lua's numbers cannot tell neighbours apart.
    older = LedgerWriter(config, "r0", "127.0.0.1:1", 2**63, WriterMetrics(registry))
    older.start()
    older.publish(totals(10, 4, 1), {"old": 4})
    await row_that(config, lambda row: row.held_requests == {"old": 4})
    with caplog.at_level(logging.INFO), running_writer(config, generation=2**63 + 1) as newer:
        newer.publish(totals(10, 1, 1), {"new": 1})
        row = await row_that(config, lambda row: row.replica.generation == 2**63 + 1)
        for _ in range(20):
            older.publish(totals(10, 5, 1), {"old": 5})
            await asyncio.sleep(0.03)
            row = await row_that(config, lambda row: True)
            assert row.held_requests == {"new": 1}
        assert older.fenced
        assert not newer.fenced
        older.close()
        assert len(await read_ledger(config)) == 1, "a left-over does not take the new entry away"
    assert (registry.get_sample_value("forerun_ledger_writes_total", {"result": "fenced"}) or 0) >= 1
    assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == [
        f"ledger: entry of r0 is not ours: generation {2**63} is fenced off by generation {2**63 + 1}; "
        "is this process a left-over?"
    ]


async def test_a_killed_redis_is_rebuilt_within_two_seconds(
    redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    config = quick(redis_server.url, lease_s=5)
    registry = CollectorRegistry()
    writer = LedgerWriter(config, "r0", "127.0.0.1:1", 1, WriterMetrics(registry))
    writer.start()
    with caplog.at_level(logging.INFO):
        writer.publish(totals(10, 4, 1, 1), {"a": 4}, {"queued": 2})
        await row_that(config, lambda row: row.held_requests == {"a": 4})
        redis_server.kill()
        for blocks in range(4, 8):
            writer.publish(totals(10, blocks, 1, 1), {"a": blocks}, {"queued": 2})
            await asyncio.sleep(0.3)
        assert not writer.reachable
        redis_server.start()
        await row_that(config, lambda row: row.held_requests == {"a": 7} and row.replica.reserved == 2, 2.0)
        writer.close()
    assert [record.levelname for record in caplog.records if "outage" in record.name] == ["WARNING", "INFO"]
    assert registry.get_sample_value("forerun_ledger_rebuilds_total") == 2
    assert registry.get_sample_value("forerun_ledger_writer_reachable") == 1


async def test_forgotten_data_are_rebuilt_without_an_outage(clean_url: str) -> None:
    config = quick(clean_url, lease_s=5)
    with running_writer(config) as writer:
        writer.publish(totals(10, 4, 1, 1), {"a": 4}, {"queued": 2})
        await row_that(config, lambda row: row.held_requests == {"a": 4})
        redis.Redis.from_url(clean_url).flushall()
        assert await read_ledger(config) == []
        writer.publish(totals(10, 5, 1, 1), {"a": 4, "b": 1}, {"queued": 2})
        await row_that(config, lambda row: row.held_requests == {"a": 4, "b": 1} and row.replica.reserved == 2)


async def test_redis_may_come_later_than_the_replica(redis_server: RedisServer) -> None:
    redis_server.kill()
    config = quick(redis_server.url)
    with running_writer(config) as writer:
        writer.publish(totals(10, 4, 1), {"a": 4})
        await asyncio.sleep(1)
        redis_server.start()
        await row_that(config, lambda row: row.held_requests == {"a": 4}, 2.0)


async def test_a_hung_redis_holds_up_nobody_and_late_commands_undo_nothing(redis_server: RedisServer) -> None:
    config = quick(redis_server.url, lease_s=3, command_timeout_s=0.2)
    loop = asyncio.get_running_loop()
    with running_writer(config) as writer:
        writer.publish(totals(100, 1, 1), {"a": 1})
        await row_that(config, lambda row: row.held_requests == {"a": 1})
        redis_server.pause()
        slowest = 0.0
        for blocks in range(2, 80):
            began = loop.time()
            writer.admitted(f"reservation-{blocks}")
            writer.publish(totals(100, blocks, 1), {"a": blocks})
            slowest = max(slowest, loop.time() - began)
            await asyncio.sleep(0.02)
        assert slowest < 0.05, "the caller waited for Redis"
        redis_server.resume()
        await row_that(config, lambda row: row.held_requests == {"a": 79})
        # Redis has worked off whatever was sent while it hung; nothing older came out on top.
        await asyncio.sleep(0.2)
        await row_that(config, lambda row: row.held_requests == {"a": 79}, 0.1)
        redis_server.pause()
        began = loop.time()
        writer.close(timeout_s=1.0)
        assert loop.time() - began < 1.1
        redis_server.resume()
