"""Replicas, Redis and routers that die, drain, stall and come back, each for real."""

import asyncio
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from forerun.scheduler.v1 import service_pb2, service_pb2_grpc

from services.client import ForerunClient, Replica
from services.common.ledger import LedgerConfig, read_ledger
from services.common.outcome import Outcome
from services.common.rpc import aio_channel
from services.common.types import ReplicaState
from tests.support.fleet import FAST, SLOW, Answer, Fleet, endless
from tests.support.redis_server import RedisServer
from tests.support.scheduler_process import SchedulerProcess
from tests.support.waiting import eventually

DETECTED_S = 5.0
"""A fault is told to clients within this time of its detection."""

ONE_AT_A_TIME = SLOW | {"max_num_seqs": 1}


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    started = Fleet(tmp_path)
    yield started
    started.end()


async def until(condition: Callable[[], Awaitable[object]], timeout_s: float = 10.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not await condition():  # noqa: ASYNC110  (seen from outside)
            await asyncio.sleep(0.05)


async def replica(client: ForerunClient, replica_id: str = "r0") -> Replica:
    return next(one for one in (await client.list_replicas()).replicas if one.replica_id == replica_id)


async def has_state(client: ForerunClient, replica_id: str, state: ReplicaState) -> bool:
    return (await replica(client, replica_id)).state is state


async def drain(scheduler: SchedulerProcess) -> None:
    async with aio_channel(scheduler.address) as channel:
        await service_pb2_grpc.SchedulerServiceStub(channel).Drain(service_pb2.DrainRequest(), timeout=5)


async def test_kill_9_mid_answer_is_named_and_the_replica_is_found_again(fleet: Fleet) -> None:
    scheduler = fleet.scheduler(fake=ONE_AT_A_TIME)
    router = fleet.router({"r0": scheduler})
    async with ForerunClient(router.address, attempts=1) as client:
        running = Answer(client)
        await running.first_output()
        waiting = Answer(client)
        await asyncio.sleep(0.1)
        scheduler.signal(signal.SIGKILL)
        killed = time.monotonic()
        # Text went out: no retry can hide it. Nothing went out, and nobody else could serve: try again.
        assert await running.outcome(DETECTED_S) is Outcome.REPLICA_LOST
        assert await waiting.outcome(DETECTED_S) is Outcome.REJECTED_UNAVAILABLE
        assert time.monotonic() - killed < DETECTED_S
        assert waiting.events == []
        await eventually(lambda: router.health() == "NOT_SERVING")
        assert router.health("") == "SERVING"
        began = time.monotonic()
        late = Answer(client)
        assert await late.outcome() is Outcome.REJECTED_UNAVAILABLE
        assert late.error is not None
        assert late.error.retry_after_ms
        assert time.monotonic() - began < 1
        scheduler.start()
        await eventually(router.is_serving, 15)
        assert await Answer(client, sampling=endless(max_tokens=2)).outcome() is Outcome.LENGTH


async def test_what_waited_at_a_killed_replica_is_served_by_another_unseen(fleet: Fleet) -> None:
    schedulers = {name: fleet.scheduler(name, fake=ONE_AT_A_TIME) for name in ("r0", "r1")}
    router = fleet.router(schedulers)
    async with ForerunClient(router.address, attempts=1) as client:
        running = [Answer(client, sampling=endless(max_tokens=150)) for _ in range(2)]
        await asyncio.gather(*(answer.first_output() for answer in running))
        assert {answer.replica_id for answer in running} == {"r0", "r1"}
        waiting = [Answer(client, sampling=endless(max_tokens=3, temperature=0.0)) for _ in range(6)]
        await asyncio.sleep(0.2)
        assert {(await replica(client, name)).in_flight_requests for name in ("r0", "r1")} == {4}
        schedulers["r0"].signal(signal.SIGKILL)
        assert [await answer.outcome() for answer in waiting] == [Outcome.LENGTH] * 6
        assert {answer.replica_id for answer in waiting} == {"r1"}
        assert {answer.started for answer in waiting} == {1}
        ends = Counter([await answer.outcome() for answer in running])
        assert ends == {Outcome.REPLICA_LOST: 1, Outcome.LENGTH: 1}
    assert router.log.count("retrying elsewhere") == 3


async def test_a_draining_replica_leaves_the_set_at_once_and_finishes(fleet: Fleet) -> None:
    schedulers = {name: fleet.scheduler(name, fake=SLOW) for name in ("r0", "r1")}
    router = fleet.router(schedulers)
    async with ForerunClient(router.address, attempts=1) as client:
        running = [Answer(client, sampling=endless(max_tokens=100)) for _ in range(8)]
        await asyncio.gather(*(answer.first_output() for answer in running))
        await drain(schedulers["r0"])
        await until(lambda: has_state(client, "r0", ReplicaState.DRAINING), 5)
        new = [Answer(client, sampling=endless(max_tokens=3)) for _ in range(20)]
        assert {await answer.outcome() for answer in new} == {Outcome.LENGTH}
        assert {answer.replica_id for answer in new} == {"r1"}
        assert {await answer.outcome() for answer in running} == {Outcome.LENGTH}
        assert {answer.replica_id for answer in running} == {"r0", "r1"}
        assert router.is_serving()
        await drain(schedulers["r1"])
        await eventually(lambda: router.health() == "NOT_SERVING")
        assert await Answer(client).outcome() is Outcome.REJECTED_UNAVAILABLE


async def test_an_engine_that_dies_is_a_lost_replica(fleet: Fleet) -> None:
    scheduler = fleet.scheduler(fake=FAST | {"die_after_tokens": 40})
    router = fleet.router({"r0": scheduler})
    async with ForerunClient(router.address, attempts=1) as client:
        assert await Answer(client).outcome(DETECTED_S) is Outcome.REPLICA_LOST
        await eventually(lambda: router.health() == "NOT_SERVING")


async def test_a_stopped_scheduler_keeps_its_requests_when_it_goes_on(fleet: Fleet) -> None:
    scheduler = fleet.scheduler(fake=SLOW)
    router = fleet.router({"r0": scheduler})
    async with ForerunClient(router.address, attempts=1) as client:
        answer = Answer(client, sampling=endless(max_tokens=60))
        await answer.first_output()
        scheduler.signal(signal.SIGSTOP)
        hasty = Answer(client, timeout_s=1.0)
        assert await hasty.outcome(3) is Outcome.DEADLINE
        await asyncio.sleep(2)
        scheduler.signal(signal.SIGCONT)
        assert await answer.outcome() is Outcome.LENGTH
        assert len(answer.tokens) == 60


async def test_requests_spread_over_replicas(fleet: Fleet) -> None:
    schedulers = {name: fleet.scheduler(name, fake=FAST) for name in ("r0", "r1")}
    router = fleet.router(schedulers)
    async with ForerunClient(router.address) as client:
        answers = [Answer(client, sampling=endless(max_tokens=20)) for _ in range(50)]
        assert {await answer.outcome() for answer in answers} == {Outcome.LENGTH}
    counts = Counter(answer.replica_id for answer in answers)
    assert min(counts["r0"], counts["r1"]) >= 15


async def test_sigterm_finishes_what_runs_and_refuses_what_comes(fleet: Fleet) -> None:
    scheduler = fleet.scheduler(fake=SLOW)
    router = fleet.router({"r0": scheduler})
    async with ForerunClient(router.address, attempts=1) as client:
        answer = Answer(client, sampling=endless(max_tokens=80))
        await answer.first_output()
        router.signal(signal.SIGTERM)
        await eventually(lambda: router.health("") == "NOT_SERVING")
        assert router.health() == "NOT_SERVING"
        assert await Answer(client).outcome() is Outcome.REJECTED_UNAVAILABLE
        assert await answer.outcome() is Outcome.LENGTH
        assert len(answer.tokens) == 80
    assert router.wait(10) == 0


async def test_what_outlives_the_drain_is_told_and_frees_the_replica(fleet: Fleet) -> None:
    scheduler = fleet.scheduler(fake=SLOW)
    router = fleet.router({"r0": scheduler}, server={"drain_timeout_s": 0.5})
    async with ForerunClient(router.address, attempts=1) as client:
        answer = Answer(client)
        await answer.first_output()
        router.signal(signal.SIGTERM)
        assert await answer.outcome(5) is Outcome.REPLICA_LOST
    assert router.wait(10) == 0
    async with aio_channel(scheduler.address) as channel:
        stub = service_pb2_grpc.SchedulerServiceStub(channel)

        async def is_idle() -> bool:
            info = await stub.GetReplicaInfo(service_pb2.GetReplicaInfoRequest(), timeout=5)
            return not info.running_requests

        await until(is_idle, 5)


def test_a_taken_port_is_a_configuration_error(fleet: Fleet) -> None:
    scheduler = fleet.scheduler(fake=FAST)
    router = fleet.router({"r0": scheduler}, wait=False, server={"listen": scheduler.address})
    assert router.wait(20) == 2
    assert "cannot bind" in router.log


async def test_a_router_before_its_replicas(fleet: Fleet) -> None:
    scheduler = fleet.scheduler(fake=FAST, wait=False)
    scheduler.end()
    router = fleet.router({"r0": scheduler}, wait=False)
    await eventually(lambda: router.health("") == "SERVING", 20)
    assert router.health() == "NOT_SERVING"
    async with ForerunClient(router.address, attempts=1) as client:
        assert await Answer(client).outcome(2) is Outcome.REJECTED_UNAVAILABLE
    async with ForerunClient(router.address, attempts=20) as client:
        patient = Answer(client, sampling=endless(max_tokens=2), timeout_s=30)
        scheduler.start()
        assert await patient.outcome(30) is Outcome.LENGTH


async def test_a_replica_under_a_wrong_name_is_not_used(fleet: Fleet) -> None:
    scheduler = fleet.scheduler("other", fake=FAST)
    router = fleet.router({"r0": scheduler}, wait=False)
    await eventually(lambda: "is replica other, not r0" in router.log, 20)
    assert router.health() == "NOT_SERVING"


async def test_redis_killed_and_back_while_serving(fleet: Fleet, redis_server: RedisServer) -> None:
    ledger = {"url": redis_server.url, "lease_s": 1.5, "flush_interval_s": 0.05, "refresh_interval_s": 0.05}
    schedulers = {name: fleet.scheduler(name, fake=SLOW, ledger=ledger) for name in ("r0", "r1")}
    router = fleet.router(schedulers, ledger=ledger)
    config = LedgerConfig(**ledger)
    async with ForerunClient(router.address, attempts=1) as client:

        async def reachable() -> bool:
            return (await client.list_replicas()).ledger_reachable

        async def unreachable() -> bool:
            return not await reachable()

        await until(reachable)
        long = Answer(client, sampling=endless(max_tokens=400))
        await long.first_output()
        redis_server.kill()
        await until(unreachable)
        for _ in range(3):
            began = time.monotonic()
            assert await Answer(client, sampling=endless(max_tokens=3)).outcome() is Outcome.LENGTH
            assert time.monotonic() - began < 2
        redis_server.start()
        await until(reachable)
        assert await Answer(client, sampling=endless(max_tokens=3)).outcome() is Outcome.LENGTH
        assert await long.outcome(30) is Outcome.LENGTH

    async def settled() -> bool:
        rows = await read_ledger(config)
        return len(rows) == 2 and all(not row.reservations and not row.held_requests for row in rows)

    await until(settled)


async def test_a_redis_that_stands_still_costs_one_bounded_wait(fleet: Fleet, redis_server: RedisServer) -> None:
    ledger = {"url": redis_server.url, "command_timeout_s": 0.3, "refresh_interval_s": 0.05}
    router = fleet.router({"r0": fleet.scheduler(fake=FAST, ledger=ledger)}, ledger=ledger)
    async with ForerunClient(router.address, attempts=1) as client:
        redis_server.pause()
        for _ in range(5):
            began = time.monotonic()
            assert await Answer(client, sampling=endless(max_tokens=2)).outcome() is Outcome.LENGTH
            assert time.monotonic() - began < 2
        redis_server.resume()

        async def reachable() -> bool:
            return (await client.list_replicas()).ledger_reachable

        await until(reachable)


async def test_a_router_starts_and_stops_without_its_redis(fleet: Fleet, free_port: Callable[[], int]) -> None:
    scheduler = fleet.scheduler(fake=FAST)
    router = fleet.router({"r0": scheduler}, ledger={"url": f"redis://127.0.0.1:{free_port()}/0"})
    async with ForerunClient(router.address, attempts=1) as client:
        assert await Answer(client, sampling=endless(max_tokens=2)).outcome() is Outcome.LENGTH
        assert not (await client.list_replicas()).ledger_reachable
    router.signal(signal.SIGTERM)
    assert router.wait(10) == 0


async def test_reservations_are_made_and_all_come_back(fleet: Fleet, redis_server: RedisServer) -> None:
    ledger = {"url": redis_server.url, "lease_s": 6.0, "flush_interval_s": 0.02, "refresh_interval_s": 0.05}
    scheduler = fleet.scheduler(fake=ONE_AT_A_TIME, ledger=ledger)
    router = fleet.router({"r0": scheduler}, ledger=ledger)
    config = LedgerConfig(**ledger)

    async def reservations() -> int:
        return sum(len(row.reservations) for row in await read_ledger(config))

    async with ForerunClient(router.address, attempts=1) as client:
        running = Answer(client)
        await running.first_output()
        waiting = [Answer(client) for _ in range(5)]

        async def all_reserved() -> bool:
            return await reservations() == 5

        await until(all_reserved)
        assert (await replica(client)).reserved_blocks >= 5
        for answer in (*waiting, running):
            await answer.cancel()

        async def none_left() -> bool:
            return await reservations() == 0

        # Well before their lease ends.
        await until(none_left, 3)


async def test_a_killed_routers_reservations_end(fleet: Fleet, redis_server: RedisServer) -> None:
    ledger = {"url": redis_server.url, "lease_s": 1.5, "flush_interval_s": 0.05, "refresh_interval_s": 0.05}
    scheduler = fleet.scheduler(fake=ONE_AT_A_TIME, ledger=ledger)
    router = fleet.router({"r0": scheduler}, ledger=ledger)
    config = LedgerConfig(**ledger)
    async with ForerunClient(router.address, attempts=1) as client:
        running = Answer(client)
        await running.first_output()
        answers = [running, *(Answer(client) for _ in range(5))]
        await asyncio.sleep(0.2)
        router.signal(signal.SIGKILL)
        outcomes = Counter([await answer.outcome(DETECTED_S) for answer in answers])
        assert outcomes == {Outcome.REPLICA_LOST: 1, Outcome.REJECTED_UNAVAILABLE: 5}

    async def settled() -> bool:
        rows = await read_ledger(config)
        return len(rows) == 1 and not rows[0].reservations and not rows[0].held_requests

    await until(settled, 5)


async def test_replicas_are_discovered_through_the_ledger(fleet: Fleet, redis_server: RedisServer) -> None:
    ledger = {"url": redis_server.url, "lease_s": 1.0, "flush_interval_s": 0.05, "refresh_interval_s": 0.05}
    router = fleet.router({}, wait=False, discover=True, ledger=ledger)
    await eventually(lambda: router.health("") == "SERVING", 20)
    first = fleet.scheduler("r0", fake=FAST, ledger=ledger)
    await eventually(router.is_serving, 10)
    second = fleet.scheduler("r1", fake=FAST, ledger=ledger)
    async with ForerunClient(router.address, attempts=1) as client:

        async def known() -> set[str]:
            replicas = (await client.list_replicas()).replicas
            return {one.replica_id for one in replicas if one.state is ReplicaState.SERVING}

        async def both() -> bool:
            return await known() == {"r0", "r1"}

        await until(both)
        first.signal(signal.SIGKILL)

        async def second_only() -> bool:
            replicas = (await client.list_replicas()).replicas
            return [one.replica_id for one in replicas] == ["r1"]

        await until(second_only)
        assert await Answer(client, sampling=endless(max_tokens=2)).outcome() is Outcome.LENGTH
    assert second.is_serving()
