"""Reservations and a router's view against a real Redis that dies, hangs, refuses and comes back."""

import asyncio
import signal
import time

import pytest
import redis
from prometheus_client import CollectorRegistry

from services.common.ledger import LedgerUnavailableError, LedgerView, ReplicaTruth, ViewMetrics, check_ledger
from tests.integration.ledger_support import (
    LEASE_S,
    eventually,
    python_process,
    quick,
    row_that,
    running_view,
    running_writer,
    totals,
)
from tests.support.redis_server import RedisServer

ROUTER_PROGRAM = """
import asyncio, sys
from tests.integration.ledger_support import quick, running_view
async def main():
    async with running_view(quick(sys.argv[1])) as view:
        print(await view.reserve("r0", "from-a-dead-router", 60), flush=True)
        await asyncio.sleep(60)
asyncio.run(main())
"""


@pytest.fixture
def clean_url(shared_redis_server: RedisServer) -> str:
    """A Redis without any keys."""
    redis.Redis.from_url(shared_redis_server.url).flushall()
    return shared_redis_server.url


async def test_reservations_fit_or_are_refused_and_ids_are_idempotent(clean_url: str) -> None:
    config = quick(clean_url, lease_s=5)
    registry = CollectorRegistry()
    with running_writer(config) as writer:
        writer.publish(totals(100, 20, 1), {"a": 20})
        await row_that(config, lambda row: True)
        view = LedgerView(config, ViewMetrics(registry))
        await view.start()
        assert await view.reserve("r0", "x", 50)
        assert await view.reserve("r0", "x", 50), "the same again changes nothing"
        assert view.replicas["r0"].reserved == 50, "seen at once"
        assert not await view.reserve("r0", "y", 31)
        assert await view.reserve("r0", "y", 30)
        assert not await view.reserve("r0", "z", 1)
        await view.release("x")
        await view.release("x")
        await view.release("never reserved")
        assert await view.reserve("r0", "z", 50)
        await eventually(lambda: view.replicas["r0"].reserved == 80)
        with pytest.raises(LedgerUnavailableError, match="no live replica 'r9'"):
            await view.reserve("r9", "x", 1)
        await view.close()
    results = {
        result: registry.get_sample_value("forerun_ledger_reservations_total", {"result": result})
        for result in ("granted", "refused", "unavailable")
    }
    assert results == {"granted": 4, "refused": 2, "unavailable": 1}


async def test_a_reservation_becomes_held_blocks_in_one_write(clean_url: str) -> None:
    config = quick(clean_url, lease_s=5)
    with running_writer(config) as writer:
        writer.publish(totals(100))
        await row_that(config, lambda row: True)
        async with running_view(config) as view:
            sums: set[int] = set()

            async def watch() -> None:
                while True:
                    await view.refresh()
                    replica = view.replicas["r0"]
                    sums.add(replica.held + replica.reserved)

            assert await view.reserve("r0", "straight", 30)
            assert await view.reserve("r0", "queued", 40)
            watching = asyncio.create_task(watch())
            await asyncio.sleep(0.05)
            writer.admitted("straight")
            writer.publish(totals(100, 30, 1, 1), {"a": 30}, {"queued": 40})
            await asyncio.sleep(0.05)
            writer.publish(totals(100, 70, 2), {"a": 30, "b": 40})
            await row_that(config, lambda row: row.replica.held == 70)
            watching.cancel()
            assert sums == {70}, "no reading shows blocks twice or not at all"
            truth = ReplicaTruth("r0", 1, total=100, free=30, running=2, waiting=0, held_requests={"a": 30, "b": 40})
            assert await check_ledger(config, [truth]) == []


async def test_what_waits_in_the_queue_outlives_its_lease_and_ends_with_the_wait(clean_url: str) -> None:
    config = quick(clean_url)
    with running_writer(config) as writer:
        writer.publish(totals(100))
        await row_that(config, lambda row: True)
        async with running_view(config) as view:
            assert await view.reserve("r0", "patient", 60)
            assert await view.reserve("r0", "lost on the way", 20)
            # The replica would reckon with 50; what was promised stands.
            writer.publish(totals(100, waiting=2), waiting={"patient": 50, "came without": 10})
            await asyncio.sleep(LEASE_S * 2)
            row = await row_that(config, lambda row: True)
            assert {r.reservation_id: r.blocks for r in row.reservations} == {"patient": 60, "came without": 10}
            assert row.replica.reserved == 70, "the one that never arrived is over"
            assert not await view.reserve("r0", "more", 31)
            writer.released("came without")
            writer.publish(totals(100))
            await row_that(config, lambda row: row.replica.reserved == 0)


async def test_expired_reservations_make_room_before_anybody_sweeps(clean_url: str) -> None:
    with running_writer(quick(clean_url, lease_s=30)) as writer:
        writer.publish(totals(100))
        await row_that(quick(clean_url), lambda row: True)
        async with running_view(quick(clean_url, lease_s=0.4, flush_interval_s=0.1)) as view:
            assert await view.reserve("r0", "first", 60)
            await asyncio.sleep(0.25)
            assert await view.reserve("r0", "second", 10)
            await asyncio.sleep(0.2)
            assert await view.reserve("r0", "third", 90)


async def test_a_killed_routers_reservations_end_by_lease(clean_url: str) -> None:
    config = quick(clean_url)
    with running_writer(config) as writer:
        writer.publish(totals(100))
        await row_that(config, lambda row: True)
        async with running_view(config) as view:
            with python_process(ROUTER_PROGRAM, clean_url) as router:
                await eventually(lambda: view.replicas["r0"].reserved == 60)
                assert not await view.reserve("r0", "x", 50)
                router.send_signal(signal.SIGKILL)
                router.wait()
            await eventually(lambda: view.replicas["r0"].reserved == 0, LEASE_S + 0.3)
            assert await view.reserve("r0", "x", 50)
        truth = ReplicaTruth("r0", 1, total=100, free=100, running=0, waiting=0, held_requests={})
        [drift] = await check_ledger(config, [truth], wait_s=0.1)
        assert drift.what == "reservations", "a reservation that nobody waits with is named"
        assert await check_ledger(config, [truth], wait_s=LEASE_S + 0.5) == []


async def test_the_last_view_outlives_redis_and_a_new_one_follows(redis_server: RedisServer) -> None:
    config = quick(redis_server.url)
    with running_writer(config) as writer:
        writer.publish(totals(100, 7, 1), {"a": 7})
        await row_that(config, lambda row: True)
        async with running_view(config) as view:
            seen = view.replicas
            redis_server.kill()
            await eventually(lambda: not view.reachable)
            await asyncio.sleep(1.5)
            assert view.replicas == seen
            assert view.age_s > 1.4
            with pytest.raises(LedgerUnavailableError):
                await view.reserve("r0", "x", 1)
            await view.release("x")
            writer.publish(totals(100, 8, 1), {"a": 8})
            redis_server.start()
            await eventually(lambda: view.reachable and view.replicas.get("r0", None) is not None, 2.0)
            await eventually(lambda: "r0" in view.replicas and view.replicas["r0"].held == 8, 2.0)
            assert view.age_s < 1
            assert await view.reserve("r0", "x", 1)


async def test_a_hung_redis_delays_one_call_and_then_none(redis_server: RedisServer) -> None:
    config = quick(redis_server.url, refresh_interval_s=30, command_timeout_s=0.3)
    with running_writer(config) as writer:
        writer.publish(totals(100))
        await row_that(config, lambda row: True)
        async with running_view(config) as view:
            assert await view.reserve("r0", "before", 10)
            redis_server.pause()
            delays = []
            for index in range(3):
                began = time.monotonic()
                with pytest.raises(LedgerUnavailableError):
                    await view.reserve("r0", f"x{index}", 1)
                delays.append(time.monotonic() - began)
            assert delays[0] < config.command_timeout_s + 0.1
            assert max(delays[1:]) < 0.02
            await view.release("before")
            assert not view.reachable
            redis_server.resume()
            assert await view.refresh()
            assert await view.reserve("r0", "after", 10)


async def test_a_cancelled_call_ends_cancelled_and_does_not_spoil_the_connection(clean_url: str) -> None:
    config = quick(clean_url)
    with running_writer(config) as writer:
        writer.publish(totals(1000))
        await row_that(config, lambda row: True)
        async with running_view(config) as view:
            for index in range(200):
                task = asyncio.create_task(view.reserve("r0", f"x{index}", 1))
                for _ in range(index % 20):
                    await asyncio.sleep(0)
                pending = task.cancel()
                await asyncio.wait([task])
                assert task.cancelled() or not pending, "the cancellation was swallowed"
                assert await view.reserve("r0", "between", 1)
                await view.release(f"x{index}")
            await view.release("between")
            await eventually(lambda: view.replicas["r0"].reserved == 0, LEASE_S * 2)


async def test_close_ends_whatever_the_view_is_doing(clean_url: str) -> None:
    for index in range(30):
        async with asyncio.timeout(2), running_view(quick(clean_url, refresh_interval_s=0.01)):
            for _ in range(index):
                await asyncio.sleep(0)
    assert [task.get_name() for task in asyncio.all_tasks() if task.get_name() == "ledger-view"] == []
