"""The least that a message costs: two processes send 400 bytes to and fro over one gRPC stream, without Forerun."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import contextmanager
from typing import Any

import grpc.aio

from benchmarks.stack_cost.processor_time import processor_ms

MESSAGE = b"x" * 400
"""About what a plan for a few requests has."""
ROUND_TRIPS, WARM_UP, PAUSE_S = 300, 50, 0.01
_METHOD = "/benchmark.Echo/Echo"


async def message_cost_ms(rounds: int) -> list[float]:
    """Processor time of one end of one message, by round; what the pauses between them cost is taken off."""
    with _server() as (address, process_id):
        async with grpc.aio.insecure_channel(address) as channel:
            call = channel.stream_stream(_METHOD)()
            await _round_trips(call, WARM_UP, pause_s=0.0)
            return [await _round(call, process_id) for _ in range(rounds)]


async def _round(call: Any, server: int) -> float:
    ours = os.getpid()
    begin = processor_ms(ours)
    for _ in range(ROUND_TRIPS):
        await asyncio.sleep(PAUSE_S)
    pauses = processor_ms(ours) - begin
    begin = processor_ms(ours) + processor_ms(server)
    await _round_trips(call, ROUND_TRIPS, PAUSE_S)
    used = processor_ms(ours) + processor_ms(server) - begin - pauses
    return used / ROUND_TRIPS / 4  # Two messages, each with two ends.


async def _round_trips(call: Any, count: int, pause_s: float) -> None:
    for _ in range(count):
        await call.write(MESSAGE)
        await call.read()
        await asyncio.sleep(pause_s)


@contextmanager
def _server() -> Any:
    process = subprocess.Popen([sys.executable, "-m", __name__], stdout=subprocess.PIPE, text=True)
    try:
        yield process.stdout.readline().strip(), process.pid
    finally:
        process.kill()
        process.wait()


async def _serve() -> None:
    async def echo(requests: AsyncIterator[bytes], _context: object) -> AsyncIterator[bytes]:
        async for message in requests:
            yield message

    server = grpc.aio.server()
    service, method = _METHOD.removeprefix("/").split("/")
    handler = grpc.stream_stream_rpc_method_handler(echo)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"127.0.0.1:{port}", flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(_serve())
