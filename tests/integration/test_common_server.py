"""The life of a server: bind checked, health truthful, stop ordered and bounded, signals obeyed."""

import asyncio
import contextlib
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
import structlog
from forerun.inference.v1 import service_pb2, service_pb2_grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from services.common import server as server_module
from services.common.config import ServerConfig, TlsConfig
from services.common.errors import ConfigError
from services.common.rpc import aio_channel
from services.common.server import GrpcServer
from tests.support.probe_service import INFERENCE, SCHEDULER, STAGE, probe_server
from tests.support.waiting import eventually

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


async def health_of(channel: grpc.aio.Channel, service: str = "") -> int:
    stub = health_pb2_grpc.HealthStub(channel)
    return int((await stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=5)).status)


async def test_health_follows_each_service_and_the_overall_one_needs_all() -> None:
    server = GrpcServer(ServerConfig(), [INFERENCE, SCHEDULER])
    await server.start()
    async with aio_channel(server.address) as channel:
        assert [await health_of(channel, name) for name in ("", INFERENCE, SCHEDULER)] == [NOT_SERVING] * 3
        await server.set_serving(True, INFERENCE)
        states = [await health_of(channel, name) for name in ("", INFERENCE, SCHEDULER)]
        assert states == [NOT_SERVING, SERVING, NOT_SERVING]
        await server.set_serving(True)
        assert [await health_of(channel, name) for name in ("", INFERENCE, SCHEDULER)] == [SERVING] * 3
        await server.set_serving(False, SCHEDULER)
        assert await health_of(channel) == NOT_SERVING
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await health_of(channel, "no.such.Service")
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    with pytest.raises(ValueError, match=r"no\.such\.Service"):
        await server.set_serving(True, "no.such.Service")
    await server.stop()


async def test_watchers_of_health_see_every_change() -> None:
    async with probe_server() as (server, _), aio_channel(server.address) as channel:
        watch: Any = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service=""))
        assert (await watch.read()).status == SERVING
        await server.set_serving(False)
        assert (await watch.read()).status == NOT_SERVING
        watch.cancel()


async def test_reflection_lists_every_service() -> None:
    async with probe_server() as (server, _), aio_channel(server.address) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        responses = [response async for response in stub.ServerReflectionInfo(iter([request]))]
        names = {service.name for service in responses[0].list_services_response.service}
        assert {INFERENCE, SCHEDULER, STAGE, "grpc.health.v1.Health"} <= names


async def test_a_taken_port_fails_the_start() -> None:
    async with probe_server() as (server, _):
        second = GrpcServer(ServerConfig(listen=server.address), [INFERENCE])
        with pytest.raises(ConfigError, match=r"listen: cannot bind 127\.0\.0\.1"):
            await second.start()
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        third = GrpcServer(ServerConfig(listen=f"127.0.0.1:{other.getsockname()[1]}"), [INFERENCE])
        with pytest.raises(ConfigError, match="is the port taken"):
            await third.start()


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0"])
async def test_plain_text_beyond_loopback_must_be_asked_for_by_name(listen: str) -> None:
    with pytest.raises(ConfigError) as caught:
        await GrpcServer(ServerConfig(listen=listen), [INFERENCE]).start()
    assert str(caught.value).startswith(f"listen: {listen} is not loopback")
    assert "allow_plaintext: true" in str(caught.value)
    allowed = GrpcServer(ServerConfig(listen=listen, allow_plaintext=True), [INFERENCE])
    await allowed.start()
    assert allowed.port > 0
    await allowed.stop()


@pytest.mark.parametrize(("content", "problem"), [(None, "cannot read"), (b"no certificate", "is not a PEM file")])
async def test_bad_certificate_files_fail_the_start(tmp_path: Path, content: bytes | None, problem: str) -> None:
    path = tmp_path / "server.pem"
    if content is not None:
        path.write_bytes(content)
    tls = TlsConfig(cert_file=path, key_file=path, require_client_cert=False)
    with pytest.raises(ConfigError, match=rf"tls\.key_file: .*{problem}|tls\.key_file: {problem}"):
        await GrpcServer(ServerConfig(tls=tls), [INFERENCE]).start()


async def test_certificates_that_do_not_parse_fail_the_start(tmp_path: Path) -> None:
    path = tmp_path / "server.pem"
    path.write_bytes(b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    tls = TlsConfig(cert_file=path, key_file=path, require_client_cert=False)
    with pytest.raises(ConfigError, match=r"listen|tls"):
        await GrpcServer(ServerConfig(tls=tls), [INFERENCE]).start()


async def test_stop_says_not_serving_then_drains_then_stops() -> None:
    async with probe_server() as (server, inference), aio_channel(server.address) as channel:
        stub = service_pb2_grpc.InferenceServiceStub(channel)
        stream: Any = stub.Generate(service_pb2.GenerateRequest(model="hang"))
        await stream.read()
        seen: list[object] = []

        async def drain() -> None:
            seen.append(await health_of(channel))
            seen.append(inference.open_streams)
            stream.cancel()
            await eventually(lambda: inference.open_streams == 0)

        await asyncio.wait_for(server.stop(drain), 5)
        assert seen == [NOT_SERVING, 1]
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await health_of(channel)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_calls_that_outlive_the_drain_are_ended_and_their_clients_told() -> None:
    config = ServerConfig(drain_timeout_s=0.3)
    async with probe_server(config) as (server, inference), aio_channel(server.address) as channel:
        stub = service_pb2_grpc.InferenceServiceStub(channel)
        stream: Any = stub.Generate(service_pb2.GenerateRequest(model="hang"))
        await stream.read()
        started = time.monotonic()
        await asyncio.wait_for(server.stop(lambda: asyncio.sleep(60)), 10)
        assert 0.3 <= time.monotonic() - started < 5
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await asyncio.wait_for(stream.read(), 5)
        assert caught.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
        await eventually(lambda: inference.open_streams == 0)


async def test_a_failing_drain_does_not_stop_the_stop() -> None:
    async def drain() -> None:
        raise RuntimeError("drain broke")

    async with probe_server() as (server, _):
        with structlog.testing.capture_logs() as logs:
            await asyncio.wait_for(server.stop(drain), 5)
        (line,) = logs
        assert (line["step"], str(line["exc_info"])) == ("drain", "drain broke")


async def test_work_that_ignores_its_cancellation_does_not_hold_the_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "STOP_GRACE_S", 0.2)
    monkeypatch.setattr(server_module, "CANCEL_TIMEOUT_S", 0.3)
    let_go = asyncio.Event()

    async def stubborn() -> None:
        while not let_go.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await let_go.wait()

    config = ServerConfig(drain_timeout_s=0.2)
    async with probe_server(config) as (server, inference), aio_channel(server.address) as channel:
        inference.hang = stubborn
        stub = service_pb2_grpc.InferenceServiceStub(channel)
        stream: Any = stub.Generate(service_pb2.GenerateRequest(model="stubborn"))
        await stream.read()
        await asyncio.wait_for(server.stop(stubborn), 3)
        let_go.set()
        await eventually(lambda: inference.open_streams == 0)


async def test_nothing_is_serving_once_the_stop_has_begun() -> None:
    async with probe_server() as (server, _), aio_channel(server.address) as channel:

        async def drain() -> None:
            # As a monitor would that has not heard of the stop.
            await server.set_serving(True)
            assert await health_of(channel) == NOT_SERVING

        with structlog.testing.capture_logs() as logs:
            await asyncio.wait_for(server.stop(drain), 5)
        assert logs == []


async def test_stop_twice_at_once_drains_once() -> None:
    drains = 0

    async def drain() -> None:
        nonlocal drains
        drains += 1
        await asyncio.sleep(0.1)

    async with probe_server() as (server, _):
        await asyncio.wait_for(asyncio.gather(server.stop(drain), server.stop(drain)), 5)
        await server.stop()
    assert drains == 1


async def test_a_server_that_never_started_can_be_stopped() -> None:
    await asyncio.wait_for(GrpcServer(ServerConfig(), [INFERENCE]).stop(), 5)


CHILD = """
import asyncio, sys
from services.common import server as server_module
from services.common.config import ServerConfig
from services.common.server import GrpcServer, StopSignal

async def main():
    stop = StopSignal()
    server = GrpcServer(ServerConfig(), ["a.Service"])
    await server.start()
    await server.set_serving(True)
    print(server.address, flush=True)
    number = await stop.wait()
    assert stop.is_received
    print(number.name, flush=True)
    await server.stop(lambda: asyncio.sleep(float(sys.argv[1])))
    print("stopped", flush=True)

asyncio.run(main())
"""


def start_child(drain_s: float) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", CHILD, str(drain_s)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline().startswith("127.0.0.1:")
    return child


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_one_signal_stops_in_order(number: signal.Signals) -> None:
    child = start_child(drain_s=0.2)
    try:
        child.send_signal(number)
        output, _ = child.communicate(timeout=15)
        assert output.splitlines() == [number.name, "stopped"]
        assert child.returncode == 0
    finally:
        child.kill()


def test_a_second_signal_ends_at_once() -> None:
    child = start_child(drain_s=60)
    try:
        child.send_signal(signal.SIGTERM)
        assert child.stdout is not None
        assert child.stdout.readline() == "SIGTERM\n"
        child.send_signal(signal.SIGINT)
        started = time.monotonic()
        output, _ = child.communicate(timeout=10)
        assert time.monotonic() - started < 2
        assert output == ""
        assert child.returncode == 128 + signal.SIGINT
    finally:
        child.kill()
