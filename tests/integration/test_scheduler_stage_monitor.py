"""A stage that stands still makes the replica STALLED, and one that goes on makes it SERVING again."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from services.common.rpc import aio_channel
from services.common.types import ReplicaState
from services.scheduler.monitor import StageMonitor
from services.scheduler.status import ReplicaStatus
from tests.support.waiting import eventually

_STAGE = """
import asyncio
from services.common.config import ServerConfig
from services.common.server import GrpcServer
async def main():
    server = GrpcServer(ServerConfig(), ["forerun.stage.v1.StageService"])
    await server.start()
    await server.set_serving(True)
    print(server.address, flush=True)
    await asyncio.sleep(120)
asyncio.run(main())
"""


@asynccontextmanager
async def stage_process() -> AsyncIterator[tuple[str, int]]:
    """A process that answers health checks: its address and process id."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", _STAGE, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        yield (await process.stdout.readline()).decode().strip(), process.pid
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def test_stop_and_go_of_one_of_two_stages() -> None:
    async with stage_process() as (first, _), stage_process() as (second, second_pid):
        status = ReplicaStatus()
        async with aio_channel(first) as one, aio_channel(second) as two:
            monitor = StageMonitor([(first, one), (second, two)], status, stall_after_s=1.0)
            running = asyncio.create_task(monitor.run())
            await asyncio.sleep(2.5)
            assert status.state is ReplicaState.SERVING
            os.kill(second_pid, signal.SIGSTOP)
            await eventually(lambda: status.state is ReplicaState.STALLED, 6)
            assert second in status.reason
            assert first not in status.reason
            os.kill(second_pid, signal.SIGCONT)
            await eventually(lambda: status.state is ReplicaState.SERVING, 5)
            os.kill(second_pid, signal.SIGKILL)
            await eventually(lambda: status.state is ReplicaState.STALLED, 6)
            running.cancel()
            await asyncio.wait([running])


async def test_a_stage_that_is_not_there() -> None:
    status = ReplicaStatus()
    async with aio_channel("127.0.0.1:9") as channel:
        running = asyncio.create_task(StageMonitor([("127.0.0.1:9", channel)], status, stall_after_s=0.5).run())
        await eventually(lambda: status.state is ReplicaState.STALLED, 6)
        running.cancel()
        await asyncio.wait([running])
