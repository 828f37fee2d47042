"""The fake engine's books and the ledger agree, also after routers that were killed and while Redis is away."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from forerun.scheduler.v1 import service_pb2

from services.common.ledger import LedgerConfig, LedgerView, check_ledger, read_ledger
from services.common.ledger.check import Drift, ReplicaTruth
from services.common.outcome import Outcome
from tests.support.redis_server import RedisServer
from tests.support.scheduler_process import SchedulerProcess
from tests.support.session_client import SessionClient, outcome

LEASE_S = 1.5


@pytest.fixture
def ledger(redis_server: RedisServer) -> LedgerConfig:
    return LedgerConfig(url=redis_server.url, lease_s=LEASE_S)


@pytest.fixture
def scheduler(tmp_path: Path, ledger: LedgerConfig) -> Iterator[SchedulerProcess]:
    fake = {"step_time_s": 0.01, "max_num_seqs": 4, "total_blocks": 256, "block_size_tokens": 16, "max_model_len": 2048}
    process = SchedulerProcess(
        tmp_path, replica_id="r1", max_queued_requests=8, fake=fake, ledger={"url": ledger.url, "lease_s": LEASE_S}
    )
    yield process.start()
    process.end()


@pytest.fixture
async def view(ledger: LedgerConfig) -> AsyncIterator[LedgerView]:
    view = LedgerView(ledger)
    await view.start()
    yield view
    await view.close()


async def drifts(session: SessionClient, ledger: LedgerConfig) -> list[Drift]:
    info = await session.stub.GetReplicaInfo(service_pb2.GetReplicaInfoRequest(), timeout=5)
    truth = ReplicaTruth(
        replica_id=info.replica_id,
        generation=info.generation,
        total=info.total_blocks,
        free=info.free_blocks,
        running=info.running_requests,
        waiting=info.waiting_requests,
    )
    return await check_ledger(ledger, [truth], wait_s=5.0)


async def test_reservations_become_held_blocks_and_come_back(
    scheduler: SchedulerProcess, ledger: LedgerConfig, view: LedgerView
) -> None:
    async with SessionClient(scheduler.address) as session:
        assert await drifts(session, ledger) == []
        for number in range(6):
            assert await view.reserve("r1", f"res-{number}", 2)
            await session.submit(f"q{number}", max_tokens=2000, ignore_eos=True, reservation_id=f"res-{number}")
        await session.first_delta("q3")
        await asyncio.sleep(LEASE_S + 1)
        [row] = await read_ledger(ledger)
        assert len(row.held_requests) == 4
        assert all(name.endswith(("q0", "q1", "q2", "q3")) for name in row.held_requests)
        # The two that still wait keep their promise beyond its lease.
        assert {reservation.reservation_id for reservation in row.reservations} == {"res-4", "res-5"}
        for number in range(6):
            await session.cancel(f"q{number}")
            assert outcome(await session.finished(f"q{number}")) is Outcome.CANCELLED
        assert await drifts(session, ledger) == []
        [row] = await read_ledger(ledger)
        assert (row.replica.free, row.replica.held, row.replica.reserved) == (256, 0, 0)


async def test_no_drift_after_a_router_vanished(
    scheduler: SchedulerProcess, ledger: LedgerConfig, view: LedgerView
) -> None:
    async with SessionClient(scheduler.address, "observer") as observer:
        async with SessionClient(scheduler.address, "leaver") as leaver:
            for number in range(10):
                await view.reserve("r1", f"res-{number}", 2)
                await leaver.submit(f"q{number}", max_tokens=2000, ignore_eos=True, reservation_id=f"res-{number}")
            await leaver.first_delta("q0")
        assert await drifts(observer, ledger) == []


async def test_redis_away_and_back(
    scheduler: SchedulerProcess, ledger: LedgerConfig, redis_server: RedisServer
) -> None:
    async with SessionClient(scheduler.address) as session:
        await session.submit("during", max_tokens=150, ignore_eos=True)
        await session.first_delta("during")
        redis_server.kill()
        assert outcome(await session.finished("during", 20)) is Outcome.LENGTH
        assert scheduler.is_serving()
        await session.submit("away", max_tokens=10, ignore_eos=True)
        assert outcome(await session.finished("away", 20)) is Outcome.LENGTH
        redis_server.start()
        async with asyncio.timeout(15):
            while not await read_ledger(ledger):  # noqa: ASYNC110  (Redis tells nobody that it is back)
                await asyncio.sleep(0.1)
        assert await drifts(session, ledger) == []
