"""How a scheduler process starts, drains, dies and lets go; every fault is a real one."""

import asyncio
import json
import signal
import socket
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from forerun.inference.v1 import service_pb2 as inference_pb2
from forerun.scheduler.v1 import service_pb2

from services.common.outcome import Outcome
from tests.support.scheduler_process import SchedulerProcess
from tests.support.session_client import SessionClient, outcome
from tests.support.waiting import eventually, eventually_sync

Starter = Callable[..., SchedulerProcess]

FAST: dict[str, Any] = {"step_time_s": 0.002, "max_num_seqs": 8}
SLOW: dict[str, Any] = {"step_time_s": 0.02, "max_num_seqs": 8}


@pytest.fixture
def scheduler(tmp_path: Path) -> Iterator[Starter]:
    """Starts scheduler processes; ends them all."""
    processes: list[SchedulerProcess] = []

    def start(*, wait: bool = True, **config: Any) -> SchedulerProcess:
        process = SchedulerProcess(tmp_path, **config)
        processes.append(process)
        if wait:
            process.start()
        else:
            process.spawn()
        return process

    yield start
    for process in processes:
        process.end()


EXIT_S = 15
"""Generous: machines that run tests are busy."""


async def running(session: SessionClient) -> int:
    info = await session.stub.GetReplicaInfo(service_pb2.GetReplicaInfoRequest(), timeout=5)
    return int(info.running_requests + info.waiting_requests)


async def until_idle(session: SessionClient, timeout_s: float) -> None:
    async with asyncio.timeout(timeout_s):
        left = await running(session)
        while left:
            await asyncio.sleep(0.02)
            left = await running(session)


async def test_sigterm_finishes_what_runs_and_refuses_what_comes(scheduler: Starter) -> None:
    process = scheduler(fake=SLOW)
    async with SessionClient(process.address) as session:
        await session.submit("runs", max_tokens=60, ignore_eos=True)
        await session.first_delta("runs")
        process.signal(signal.SIGTERM)
        await eventually(lambda: inference_pb2.REPLICA_STATE_DRAINING in session.states)
        assert process.health() == "NOT_SERVING"
        await session.submit("late")
        late = await session.finished("late")
        assert outcome(late) is Outcome.REJECTED_UNAVAILABLE
        assert late.HasField("retry_after_ms")
        assert outcome(await session.finished("runs")) is Outcome.LENGTH
        assert len(session.token_ids("runs")) == 60
        await asyncio.wait_for(session.ended.wait(), 5)
        assert session.end_code is grpc.StatusCode.OK
    assert process.wait(EXIT_S) == 0


async def test_what_outlives_the_drain_ends_by_name(scheduler: Starter) -> None:
    process = scheduler(fake=SLOW | {"max_num_seqs": 1}, server={"drain_timeout_s": 0.3})
    async with SessionClient(process.address) as session:
        await session.submit("runs", max_tokens=8000, ignore_eos=True)
        await session.first_delta("runs")
        await session.submit("waits", max_tokens=8000, ignore_eos=True)
        process.signal(signal.SIGTERM)
        # Text went out: a retry would show it twice. Nothing went out: a retry is invisible.
        assert outcome(await session.finished("runs", 5)) is Outcome.REPLICA_LOST
        assert outcome(await session.finished("waits", 5)) is Outcome.REJECTED_UNAVAILABLE
    assert process.wait(EXIT_S) == 0


async def test_drain_rpc_keeps_the_process_and_its_requests(scheduler: Starter) -> None:
    process = scheduler(fake=SLOW)
    async with SessionClient(process.address) as session:
        await session.submit("runs", max_tokens=30, ignore_eos=True)
        await session.first_delta("runs")
        answer = await session.stub.Drain(service_pb2.DrainRequest(), timeout=5)
        assert answer.in_flight_requests == 1
        await session.submit("late")
        assert outcome(await session.finished("late")) is Outcome.REJECTED_UNAVAILABLE
        assert outcome(await session.finished("runs")) is Outcome.LENGTH
        await eventually(lambda: session.states == [inference_pb2.REPLICA_STATE_DRAINING])
        assert process.health() == "NOT_SERVING"
        info = await session.stub.GetReplicaInfo(service_pb2.GetReplicaInfoRequest(), timeout=5)
        assert info.state == inference_pb2.REPLICA_STATE_DRAINING


async def test_a_dead_engine_ends_every_request_and_the_process(scheduler: Starter) -> None:
    process = scheduler(fake=FAST | {"max_num_seqs": 1, "die_after_tokens": 40})
    async with SessionClient(process.address) as session:
        await session.submit("emits", max_tokens=8000, ignore_eos=True)
        await session.submit("waits", max_tokens=8000, ignore_eos=True)
        assert outcome(await session.finished("emits", 5)) is Outcome.REPLICA_LOST
        waits = await session.finished("waits", 5)
        assert outcome(waits) is Outcome.REJECTED_UNAVAILABLE
        assert waits.HasField("retry_after_ms")
        assert inference_pb2.REPLICA_STATE_LOST in session.states
    assert process.wait(EXIT_S) == 3


async def test_an_engine_that_dies_idle_is_noticed(scheduler: Starter) -> None:
    process = scheduler(fake=FAST | {"die_after_tokens": 0})
    async with SessionClient(process.address) as session:
        await session.submit("first")
        assert outcome(await session.finished("first", 5)) is Outcome.REJECTED_UNAVAILABLE
    assert process.wait(EXIT_S) == 3


async def test_a_stalled_engine_keeps_its_requests_and_honours_deadlines(scheduler: Starter) -> None:
    process = scheduler(fake=FAST | {"stall_after_tokens": 20, "stall_s": 1.5})
    async with SessionClient(process.address) as session:
        await session.submit("patient", max_tokens=100, ignore_eos=True)
        await session.submit("hasty", max_tokens=8000, ignore_eos=True, timeout_ms=700)
        assert outcome(await session.finished("hasty", 1.2)) is Outcome.DEADLINE
        assert outcome(await session.finished("patient", 5)) is Outcome.LENGTH
        assert len(session.token_ids("patient")) == 100


async def test_calls_before_the_engine_is_ready_are_refused(scheduler: Starter) -> None:
    process = scheduler(wait=False, fake=FAST | {"start_time_s": 2.0})
    await eventually(lambda: process.health() == "NOT_SERVING", 10)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async with SessionClient(process.address) as session:
            await session.call.initial_metadata()
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    await eventually(process.is_serving, 10)


def test_sigterm_while_the_engine_starts(scheduler: Starter) -> None:
    process = scheduler(wait=False, fake={"start_time_s": 60.0})
    eventually_sync(lambda: process.health() == "NOT_SERVING", 10)
    process.signal(signal.SIGTERM)
    assert process.wait(EXIT_S) == 0


def test_a_taken_port_fails_before_the_engine_starts(scheduler: Starter) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        process = scheduler(wait=False, server={"listen": listen}, fake={"start_time_s": 60.0})
        assert process.wait(EXIT_S) == 2
    assert "cannot bind" in process.log
    assert listen in process.log


def test_an_engine_that_does_not_start(scheduler: Starter) -> None:
    process = scheduler(wait=False, fake={"fail_start": True})
    assert process.wait(EXIT_S) == 1
    assert "told not to start" in process.log


def test_a_wrong_configuration_names_its_field(scheduler: Starter) -> None:
    process = scheduler(wait=False, fake={"total_blocks": 4})
    assert process.wait(EXIT_S) == 2
    assert "total_blocks" in process.log


_ROUTER = """
import asyncio, sys
from tests.support.session_client import SessionClient
async def main():
    async with SessionClient(sys.argv[1], "killed-router") as session:
        for number in range(12):
            await session.submit(f"r{number}", max_tokens=8000, ignore_eos=True)
        await session.first_delta("r0")
        print("running", flush=True)
        await asyncio.sleep(60)
asyncio.run(main())
"""


async def test_kill_9_of_a_router_frees_its_blocks(scheduler: Starter) -> None:
    process = scheduler(fake=SLOW)
    router = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _ROUTER, process.address, stdout=asyncio.subprocess.PIPE
    )
    try:
        assert router.stdout is not None
        assert await router.stdout.readline() == b"running\n"
        async with SessionClient(process.address) as session:
            assert await running(session) == 12
            router.kill()
            await until_idle(session, 5)
    finally:
        if router.returncode is None:
            router.kill()
        await router.wait()


async def test_a_router_that_reads_late_loses_nothing(scheduler: Starter) -> None:
    process = scheduler(fake={"step_time_s": 0.0, "max_num_seqs": 8}, session_event_buffer=64)
    async with SessionClient(process.address, reads=False) as session:
        for number in range(8):
            await session.submit(f"r{number}", prompt=[number + 1], max_tokens=2000, ignore_eos=True, logprobs=9)
        await until_idle(session, 40)
        session.start_reading()
        for number in range(8):
            finished = await session.finished(f"r{number}", 40)
            assert outcome(finished) is Outcome.LENGTH
            assert len(session.token_ids(f"r{number}")) == 2000
        deltas = [event.delta for event in session.events["r3"] if event.HasField("delta")]
        assert all(len(delta.logprobs) == len(delta.token_ids) for delta in deltas)
        assert sum(session.batch_sizes) < 8 * 2000


async def test_a_router_that_never_reads_is_given_up(scheduler: Starter) -> None:
    process = scheduler(
        fake={"step_time_s": 0.0, "max_num_seqs": 8}, session_event_buffer=64, session_buffer_bytes=2**20
    )
    async with SessionClient(process.address, reads=False) as deaf, SessionClient(process.address, "other") as other:
        for number in range(8):
            await deaf.submit(f"r{number}", max_tokens=8000, ignore_eos=True, logprobs=20)
        await other.submit("mine", max_tokens=10, ignore_eos=True)
        assert outcome(await other.finished("mine")) is Outcome.LENGTH
        await until_idle(other, 40)
        deaf.start_reading()
        await asyncio.wait_for(deaf.ended.wait(), 10)
        assert deaf.end_code is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert sum(bool(deaf.finishes(f"r{number}")) for number in range(8)) < 8


def test_metrics_page(scheduler: Starter, free_port: Callable[[], int]) -> None:
    listen = f"127.0.0.1:{free_port()}"
    process = scheduler(fake=FAST, server={"metrics_listen": listen})
    asyncio.run(_one_request(process.address))
    with urllib.request.urlopen(f"http://{listen}/metrics", timeout=5) as page:
        text = page.read().decode()
    assert 'forerun_requests_total{outcome="length"} 1.0' in text
    assert 'forerun_scheduler_state{replica="replica-0",state="serving"} 1.0' in text
    assert 'forerun_scheduler_free_blocks{replica="replica-0"} 1024.0' in text


async def _one_request(address: str) -> None:
    async with SessionClient(address) as session:
        await session.submit("a", max_tokens=5, ignore_eos=True)
        await session.finished("a")


async def test_the_admission_span_joins_the_routers_trace(scheduler: Starter, tmp_path: Path) -> None:
    traces = tmp_path / "traces"
    process = scheduler(fake=FAST, telemetry={"traces_dir": str(traces)})
    trace_id, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    async with SessionClient(process.address) as session:
        await session.submit("traced", max_tokens=5, ignore_eos=True, traceparent=f"00-{trace_id}-{parent}-01")
        await session.submit("unsampled", max_tokens=5, ignore_eos=True, traceparent=f"00-{trace_id}-{parent}-00")
        await session.submit("untraced", max_tokens=5, ignore_eos=True)
        for name in ("traced", "unsampled", "untraced"):
            await session.finished(name)
    process.signal(signal.SIGTERM)
    assert process.wait(EXIT_S) == 0
    lines = [line for file in traces.iterdir() for line in file.read_text().splitlines()]
    spans = [json.loads(line) for line in lines]
    assert len(spans) == 1
    text = lines[0]
    for part in (trace_id, parent, "admission", "gen_ai.latency.time_in_queue", "gen_ai.usage.output_tokens"):
        assert part in text
