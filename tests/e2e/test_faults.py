"""The real system, speculating across two stages, under real faults: processes killed and stopped, clients gone,
deadlines, a flood.

One system serves the whole file; a replica that loses a process is started afresh by ``restart: replica``, and every
test begins by waiting until the system serves again. After each fault the KV ledger and the engine must agree.
"""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio

from benchmarks.random_adapter import write_random_adapter
from services.cli.background import BackgroundSystem
from services.client.client import ForerunClient
from services.common.errors import RequestEndedError
from services.common.outcome import Outcome
from services.common.types import Delta, Finished, ReplicaState, SamplingOptions
from tests.support.forerun_up import forerun

pytestmark = pytest.mark.timeout(600)

READY_S = 240.0
DETECTION_S = 5.0
POOL = 8
QUEUE = 8
PROMPT = list(range(1000, 1032))


def long_answer(tokens: int = 2000) -> SamplingOptions:
    return SamplingOptions(temperature=0.0, max_tokens=tokens, ignore_eos=True)


class System(BackgroundSystem):
    """Adds what the tests ask of it: processes by name, now, and whether the ledger agrees with the engine."""

    def process(self, name: str) -> psutil.Process:
        """The process of this name that runs now."""
        return psutil.Process(self.unit(name).pid)

    def kill(self, name: str) -> None:
        os.kill(self.unit(name).pid, signal.SIGKILL)

    def drift(self) -> str:
        """What ``forerun ledger check`` says; empty when nothing drifts."""
        done = forerun("ledger", "check", "--run-dir", str(self.run_dir))
        return "" if done.returncode == 0 else done.stdout + done.stderr


@pytest.fixture(scope="module")
def system(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    adapter = write_random_adapter(tmp_path_factory.mktemp("adapter"), model_path, 15)
    config: dict[str, Any] = {
        "model": str(model_path),
        "router": {"server": {"listen": "127.0.0.1:0"}, "http_listen": "127.0.0.1:0"},
        "replicas": [
            {
                "pipeline_stages": 2,
                "speculation": {"draft_adapter": str(adapter), "mode": "always"},
                "max_queued_requests": QUEUE,
                "engine_args": {
                    "dtype": "float32",
                    "enforce_eager": True,
                    "max_model_len": 4096,
                    "max_num_seqs": POOL,
                    "max_num_batched_tokens": 512,
                    "kv_cache_memory_bytes": 256 << 20,
                },
            }
        ],
        "restart": "replica",
        "start_timeout_s": READY_S,
        "telemetry": {"log_level": "info"},
    }
    running = System(config, tmp_path_factory.mktemp("faults"), READY_S)
    running.start()
    yield running
    # The last test kills the router, upon which `forerun up` stops everything and says so by its exit code.
    expected = 0 if running.exit_code is None else 1
    code = running.stop()
    left = [p.pid for p in psutil.process_iter(["cmdline"]) if str(running.folder) in " ".join(p.info["cmdline"] or [])]
    assert (code, left) == (expected, []), running.output[-4000:]


@pytest_asyncio.fixture
async def client(system: System) -> AsyncIterator[ForerunClient]:
    async with ForerunClient(system.state.router_grpc, attempts=1) as connected:
        await until_serving(connected)
        yield connected


async def until_serving(client: ForerunClient, timeout_s: float = READY_S) -> None:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if await states(client) == [ReplicaState.SERVING]:
            return
        await asyncio.sleep(0.5)
    raise AssertionError("the system did not serve again")


async def states(client: ForerunClient) -> list[ReplicaState]:
    return [replica.state for replica in (await client.list_replicas()).replicas]


async def until_idle(client: ForerunClient, timeout_s: float = 20.0) -> None:
    """Until the only replica has nothing to do and all its blocks are free."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        (replica,) = (await client.list_replicas()).replicas
        busy = replica.in_flight_requests or replica.running_requests or replica.waiting_requests
        if not busy and replica.free_blocks == replica.total_blocks and not replica.reserved_blocks:
            return
        await asyncio.sleep(0.2)
    raise AssertionError(f"blocks or requests are left: {replica}")


class Running:
    """A long answer that is being streamed."""

    def __init__(self, client: ForerunClient, **how: Any) -> None:
        self.first = asyncio.Event()
        self.tokens = 0
        self.task = asyncio.create_task(self._run(client, how))

    async def _run(self, client: ForerunClient, how: dict[str, Any]) -> Outcome:
        try:
            async for event in client.generate(PROMPT, how.pop("sampling", long_answer()), **how):
                if isinstance(event, Delta):
                    self.tokens += len(event.token_ids)
                    self.first.set()
                elif isinstance(event, Finished):
                    return event.outcome
        except RequestEndedError as error:
            return error.outcome
        finally:
            self.first.set()
        raise AssertionError("a stream ended without an outcome")


async def start_streams(client: ForerunClient, count: int) -> list[Running]:
    streams = [Running(client) for _ in range(count)]
    for stream in streams:
        await asyncio.wait_for(stream.first.wait(), 60)
    return streams


async def outcomes(streams: list[Running], timeout_s: float = DETECTION_S) -> set[Outcome]:
    """All streams must end within the time."""
    return set(await asyncio.wait_for(asyncio.gather(*(stream.task for stream in streams)), timeout_s))


async def test_a_client_that_leaves_frees_its_blocks(system: System, client: ForerunClient) -> None:
    gone, staying = await start_streams(client, 2)
    gone.task.cancel()
    await asyncio.sleep(1)
    before = staying.tokens
    await asyncio.sleep(2)
    assert staying.tokens > before, "the other stream goes on"
    staying.task.cancel()
    await until_idle(client)
    assert not system.drift()


async def test_a_deadline_in_the_middle_of_a_prefill(system: System, client: ForerunClient) -> None:
    began = time.monotonic()
    with pytest.raises(RequestEndedError) as caught:
        # 3,900 tokens in chunks of 512 take far longer than the deadline.
        async for _ in client.generate([7] * 3900, long_answer(10), timeout_s=0.5):
            pass
    assert caught.value.outcome is Outcome.DEADLINE
    assert time.monotonic() - began < 0.5 + DETECTION_S
    await until_idle(client)
    assert not system.drift()


async def test_a_request_that_is_cancelled_in_the_queue(system: System, client: ForerunClient) -> None:
    running = await start_streams(client, POOL)
    queued = Running(client)
    await asyncio.sleep(1)
    assert queued.tokens == 0, "it waits"
    queued.task.cancel()
    for stream in running:
        stream.task.cancel()
    await until_idle(client)
    assert not system.drift()


async def test_a_flood_is_refused_at_once_and_what_was_taken_is_served(system: System, client: ForerunClient) -> None:
    streams = [Running(client, sampling=long_answer(16)) for _ in range(300)]
    ends = await asyncio.wait_for(asyncio.gather(*(stream.task for stream in streams)), 120)
    served, refused = ends.count(Outcome.LENGTH), ends.count(Outcome.REJECTED_OVERLOAD)
    assert served + refused == 300, {end: ends.count(end) for end in set(ends)}
    assert served >= POOL + QUEUE
    assert refused > 0
    await until_idle(client)
    assert not system.drift()


async def test_hostile_requests_leave_the_engine_unharmed(system: System, client: ForerunClient) -> None:
    (neighbour,) = await start_streams(client, 1)
    bad: list[tuple[Any, SamplingOptions, str]] = [
        ([], long_answer(), "tokens"),
        ([7] * 4096, long_answer(), "prompt"),
        ([10**6], long_answer(), "tokens"),
        (PROMPT, SamplingOptions(max_tokens=0), "max_tokens"),
        (PROMPT, SamplingOptions(temperature=-1.0), "temperature"),
        (PROMPT, SamplingOptions(temperature=float("nan")), "temperature"),
    ]
    for prompt, sampling, field in bad:
        with pytest.raises(RequestEndedError) as caught:
            async for _ in client.generate(prompt, sampling):
                pass
        assert caught.value.outcome is Outcome.REJECTED_INVALID, (field, caught.value.message)
        assert caught.value.message
    before = neighbour.tokens
    await asyncio.sleep(2)
    assert neighbour.tokens > before
    neighbour.task.cancel()
    await until_idle(client)


async def test_a_seeded_prompt_in_pieces(system: System, client: ForerunClient) -> None:
    """Two pieces and then one: a seeded row of an unfinished prefill must neither draw nor end the engine."""
    seeded = SamplingOptions(temperature=1.0, seed=5, max_tokens=4, ignore_eos=True, skip_reading_prefix_cache=True)
    said = []
    for _ in range(2):
        tokens: list[int] = []
        async for event in client.generate(tuple(range(1000, 1600)), seeded):
            if isinstance(event, Delta):
                tokens.extend(event.token_ids)
        said.append(tokens)
    assert said[0] == said[1]
    assert len(said[0]) == 4


async def test_redis_is_killed_and_comes_back(system: System, client: ForerunClient) -> None:
    (running,) = await start_streams(client, 1)
    system.kill("redis")
    before = running.tokens
    await asyncio.sleep(3)
    assert running.tokens > before, "tokens never wait for Redis"
    assert await outcomes([Running(client, sampling=long_answer(8))], 30) == {Outcome.LENGTH}
    running.task.cancel()
    await until_ledger_reachable(client)
    await until_idle(client)
    assert not system.drift()


async def until_ledger_reachable(client: ForerunClient, timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not (await client.list_replicas()).ledger_reachable:
        assert time.monotonic() < deadline, "the ledger is not rebuilt"
        await asyncio.sleep(0.2)


async def test_a_stage_that_is_stopped_for_20_seconds(system: System, client: ForerunClient) -> None:
    (running,) = await start_streams(client, 1)
    stage = system.process("replica-0.stage-1")
    stage.suspend()
    try:
        began = time.monotonic()
        while await states(client) != [ReplicaState.STALLED]:
            assert time.monotonic() - began < 12, "a stopped stage is not noticed"
            await asyncio.sleep(0.2)
        # New requests are refused at once instead of waiting for a stage that does not answer.
        assert await outcomes([Running(client)]) == {Outcome.REJECTED_UNAVAILABLE}
        await asyncio.sleep(max(0.0, 20 - (time.monotonic() - began)))
    finally:
        stage.resume()
    await until_serving(client, 20)
    before = running.tokens
    await asyncio.sleep(3)
    assert running.tokens > before, "the stream goes on where it stood"
    running.task.cancel()
    await until_idle(client)
    assert not system.drift()


async def test_a_stage_is_killed(system: System, client: ForerunClient) -> None:
    streams = await start_streams(client, 3)
    system.kill("replica-0.stage-0")
    assert await outcomes(streams) == {Outcome.REPLICA_LOST}
    assert await outcomes([Running(client)]) == {Outcome.REJECTED_UNAVAILABLE}
    await until_serving(client)
    assert await outcomes([Running(client, sampling=long_answer(8))], 60) == {Outcome.LENGTH}
    await until_idle(client)
    assert not system.drift()


async def test_the_scheduler_is_killed(system: System, client: ForerunClient) -> None:
    streams = await start_streams(client, 3)
    system.kill("replica-0.scheduler")
    assert await outcomes(streams) == {Outcome.REPLICA_LOST}
    await until_serving(client)
    assert await outcomes([Running(client, sampling=long_answer(8))], 60) == {Outcome.LENGTH}
    await until_idle(client)
    assert not system.drift()


async def test_the_router_is_killed_and_the_replica_frees_what_it_held(system: System, client: ForerunClient) -> None:
    """Last, since ``forerun up`` ends with its router."""
    streams = await start_streams(client, 3)
    system.kill("router")
    assert await outcomes(streams) <= {Outcome.REJECTED_UNAVAILABLE, Outcome.REPLICA_LOST, Outcome.INTERNAL}
    deadline = time.monotonic() + 60
    while system.exit_code is None:
        assert time.monotonic() < deadline, "forerun up goes on without its router"
        await asyncio.sleep(0.5)
    assert "router was killed by SIGKILL" in system.output
