"""The ledger over Sentinels and over a cluster: real servers, a real failover."""

import asyncio
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from services.client import ForerunClient
from services.common.ledger import LedgerConfig, LedgerUnavailableError, read_ledger
from services.common.outcome import Outcome
from tests.integration.ledger_support import eventually, quick, row_that, running_view, running_writer, totals
from tests.support.fleet import FAST, Answer, Fleet, endless
from tests.support.free_ports import free_port
from tests.support.redis_server import RedisServer, redis_server_path

PRIMARY = "forerun-primary"
FAILOVER_S = 20.0


class Sentinels:
    """A primary with a replica, and one Sentinel that watches them."""

    def __init__(self, folder: Path) -> None:
        self.primary = RedisServer(folder)
        self.primary.start()
        self.replica = RedisServer(folder, "--replicaof", "127.0.0.1", str(self.primary.port))
        self.replica.start()
        self.port = free_port()
        config = folder / "sentinel.conf"
        config.write_text(
            f"port {self.port}\nbind 127.0.0.1\ndir {folder}\n"
            f"sentinel monitor {PRIMARY} 127.0.0.1 {self.primary.port} 1\n"
            f"sentinel down-after-milliseconds {PRIMARY} 500\nsentinel failover-timeout {PRIMARY} 3000\n"
        )
        program = redis_server_path()
        assert program is not None
        with (folder / "sentinel.log").open("wb") as log:
            self._process = subprocess.Popen([program, str(config), "--sentinel"], stdout=log, stderr=log)
        self._wait_until_the_replica_is_known()

    @property
    def url(self) -> str:
        # The first one is not there: any that answers will do.
        return f"redis+sentinel://127.0.0.1:{free_port()},127.0.0.1:{self.port}/{PRIMARY}"

    def stop(self) -> None:
        self._process.kill()
        self._process.wait(5)
        for server in (self.primary, self.replica):
            server.kill()

    def _wait_until_the_replica_is_known(self) -> None:
        client, deadline = redis.Redis(port=self.port), time.monotonic() + 30
        while time.monotonic() < deadline:
            try:
                if client.sentinel_master(PRIMARY)["num-slaves"] == 1:
                    return
            except redis.RedisError:
                pass
            time.sleep(0.1)
        raise RuntimeError("the Sentinel does not know the replica")


@pytest.fixture
def sentinels(tmp_path: Path) -> Iterator[Sentinels]:
    made = Sentinels(tmp_path)
    yield made
    made.stop()


@pytest.fixture
def cluster_url(tmp_path: Path) -> Iterator[str]:
    """A cluster of two nodes; the second one serves all slots, the first one sends there."""
    nodes = [
        RedisServer(tmp_path, "--cluster-enabled", "yes", "--cluster-config-file", f"node-{name}.conf")
        for name in ("a", "b")
    ]
    for node in nodes:
        node.start()
    first, second = (redis.Redis(port=node.port, decode_responses=True) for node in nodes)
    second.execute_command("CLUSTER", "ADDSLOTS", *range(16384))
    first.execute_command("CLUSTER", "MEET", "127.0.0.1", nodes[1].port)
    deadline = time.monotonic() + 20
    while any(client.cluster("info")["cluster_state"] != "ok" for client in (first, second)):
        assert time.monotonic() < deadline, "the cluster did not come up"
        time.sleep(0.1)
    yield f"redis+cluster://127.0.0.1:{nodes[0].port}"
    for node in nodes:
        node.kill()


async def everything_works(config: LedgerConfig) -> None:
    with running_writer(config) as writer:
        writer.prefixes(["a", "b"], [])
        writer.publish(totals(100, 20, 1), {"x": 20})
        await row_that(config, lambda row: row.held_requests == {"x": 20})
        async with running_view(config) as view:
            await eventually(lambda: "r0" in view.replicas)
            assert await view.reserve("r0", "one", 50)
            assert not await view.reserve("r0", "two", 31)
            await view.release("one")
            assert await view.reserve("r0", "two", 31)
            assert await view.prefix_holders(["a", "b", "c"]) == {"r0": 2}


async def test_a_cluster_is_followed_to_the_node_that_has_the_keys(cluster_url: str) -> None:
    await everything_works(quick(cluster_url))


async def test_a_cluster_that_is_not_there_yet_is_found_when_it_is(tmp_path: Path) -> None:
    node = RedisServer(tmp_path, "--cluster-enabled", "yes")
    config = quick(f"redis+cluster://127.0.0.1:{node.port}", command_timeout_s=0.3)
    with running_writer(config) as writer:
        writer.publish(totals(100), {})
        await asyncio.sleep(0.5)
        assert not writer.reachable
        async with running_view(config) as view:
            with pytest.raises(LedgerUnavailableError):
                await view.reserve("r0", "one", 1)
            node.start()
            redis.Redis(port=node.port).execute_command("CLUSTER", "ADDSLOTS", *range(16384))
            await eventually(lambda: "r0" in view.replicas, timeout_s=20)
    node.kill()


async def test_a_primary_is_found_through_its_sentinel(sentinels: Sentinels) -> None:
    await everything_works(quick(sentinels.url))


async def test_an_unknown_primary_is_named(sentinels: Sentinels) -> None:
    config = quick(sentinels.url.replace(PRIMARY, "other"))
    with pytest.raises(LedgerUnavailableError, match="other"):
        await read_ledger(config)


async def test_after_a_failover_the_ledger_is_whole_again(sentinels: Sentinels) -> None:
    config = quick(sentinels.url, lease_s=6.0)
    with running_writer(config) as writer:
        writer.publish(totals(100, 20, 1), {"x": 20})
        await row_that(config, lambda row: True)
        async with running_view(config) as view:
            assert await view.reserve("r0", "before", 5)
            sentinels.primary.kill()
            writer.publish(totals(100, 30, 2), {"x": 20, "y": 10})
            row = await row_that_survives(config)
            assert row == {"x": 20, "y": 10}
            # Until the replica has written to the new primary, the view may be without it.
            await eventually(lambda: "r0" in view.replicas and view.replicas["r0"].held == 30, timeout_s=FAILOVER_S)
            assert await view.reserve("r0", "after", 5)
    assert redis.Redis(port=sentinels.replica.port).info("replication")["role"] == "master"


async def row_that_survives(config: LedgerConfig) -> dict[str, int]:
    """What the new primary says the replica holds."""
    deadline = time.monotonic() + FAILOVER_S
    while True:
        try:
            rows = await read_ledger(config)
            if rows and rows[0].replica.held == 30:
                return dict(rows[0].held_requests)
        except LedgerUnavailableError:
            pass
        assert time.monotonic() < deadline, "nothing came back"
        await asyncio.sleep(0.1)


async def test_a_failover_under_load_loses_no_request(sentinels: Sentinels, tmp_path: Path) -> None:
    ledger = {
        "url": sentinels.url, "lease_s": 6.0, "flush_interval_s": 0.05, "refresh_interval_s": 0.05,
        "command_timeout_s": 0.3,
    }  # fmt: skip
    folder = tmp_path / "fleet"
    folder.mkdir()
    fleet = Fleet(folder)
    try:
        schedulers = {name: fleet.scheduler(name, fake=FAST, ledger=ledger) for name in ("r0", "r1")}
        router = fleet.router(schedulers, ledger=ledger)
        async with ForerunClient(router.address, attempts=1) as client:
            outcomes = await _load(client, sentinels)
            assert set(outcomes) == {Outcome.LENGTH}
            deadline = time.monotonic() + FAILOVER_S
            while not (await client.list_replicas()).ledger_reachable:
                assert time.monotonic() < deadline, "the router does not find the new primary"
                await asyncio.sleep(0.1)
        await _nothing_is_left(LedgerConfig.model_validate(ledger))
    finally:
        fleet.end()


async def _load(client: ForerunClient, sentinels: Sentinels) -> Counter[Outcome]:
    """Twelve requests at a time for as long as the failover takes, and how they ended."""
    outcomes: Counter[Outcome] = Counter()
    running: set[asyncio.Task[Outcome]] = set()
    began, killed = time.monotonic(), False
    while (seconds := time.monotonic() - began) < 6.0 or running:
        while seconds < 6.0 and len(running) < 12:
            running.add(asyncio.create_task(Answer(client, sampling=endless(max_tokens=30)).outcome(30)))
        if seconds > 1.0 and not killed:
            killed = True
            sentinels.primary.kill()
        done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED, timeout=0.2)
        outcomes.update(task.result() for task in done)
    assert outcomes.total() > 50
    return outcomes


async def _nothing_is_left(config: LedgerConfig) -> None:
    deadline = time.monotonic() + FAILOVER_S
    while True:
        rows = await read_ledger(config)
        if len(rows) == 2 and all(not row.reservations and not row.held_requests for row in rows):
            return
        assert time.monotonic() < deadline, f"left: {rows}"
        await asyncio.sleep(0.1)
