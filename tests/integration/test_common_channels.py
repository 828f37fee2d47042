"""Channels: TLS in both directions, plain text refused, calls spread, dead peers found, stopped ones kept."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from forerun.inference.v1 import service_pb2, service_pb2_grpc

from services.cli.certificate_authority import CertificateAuthority
from services.common.config import ClientTlsConfig, ServerConfig, TlsConfig
from services.common.errors import ConfigError
from services.common.metrics import MetricsServer
from services.common.rpc import aio_channel, channel_options, server_options, sync_channel
from tests.support.probe_service import probe_server
from tests.support.waiting import eventually


async def ask(channel: grpc.aio.Channel, timeout_s: float = 5.0) -> str:
    stub = service_pb2_grpc.InferenceServiceStub(channel)
    return str((await stub.GetModelInfo(service_pb2.GetModelInfoRequest(), timeout=timeout_s)).dtype)


@pytest.fixture
def authority(tmp_path: Path) -> CertificateAuthority:
    return CertificateAuthority.create(tmp_path)


def server_tls(authority: CertificateAuthority, dns_name: str | None = None, *, mutual: bool = True) -> ServerConfig:
    pair = authority.issue("server", *([] if dns_name is None else [[dns_name]]))
    tls = TlsConfig(
        cert_file=pair.cert_file, key_file=pair.key_file, ca_file=authority.ca_file, require_client_cert=mutual
    )
    return ServerConfig(tls=tls)


async def test_mutual_tls(authority: CertificateAuthority) -> None:
    client = authority.issue("client")
    tls = ClientTlsConfig(ca_file=authority.ca_file, cert_file=client.cert_file, key_file=client.key_file)
    async with probe_server(server_tls(authority)) as (server, _):
        async with aio_channel(server.address, tls) as channel:
            assert await ask(channel) == "float32"
        with sync_channel(server.address, tls) as channel:
            stub = service_pb2_grpc.InferenceServiceStub(channel)
            response = await asyncio.to_thread(stub.GetModelInfo, service_pb2.GetModelInfoRequest(), 5)
            assert response.dtype == "float32"


async def test_mutual_tls_refuses_clients_without_or_with_a_foreign_certificate(
    authority: CertificateAuthority, tmp_path: Path
) -> None:
    stranger = CertificateAuthority.create(tmp_path / "other").issue("stranger")
    async with probe_server(server_tls(authority)) as (server, _):
        for pair in ({}, {"cert_file": stranger.cert_file, "key_file": stranger.key_file}):
            async with aio_channel(server.address, ClientTlsConfig(ca_file=authority.ca_file, **pair)) as channel:
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await ask(channel)
                assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        async with aio_channel(server.address) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await ask(channel)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_one_way_tls_takes_clients_without_a_certificate(authority: CertificateAuthority) -> None:
    tls = ClientTlsConfig(ca_file=authority.ca_file)
    async with (
        probe_server(server_tls(authority, mutual=False)) as (server, _),
        aio_channel(server.address, tls) as channel,
    ):
        assert await ask(channel) == "float32"


async def test_clients_refuse_servers_of_another_authority_or_name(
    authority: CertificateAuthority, tmp_path: Path
) -> None:
    other = CertificateAuthority.create(tmp_path / "other")
    config = server_tls(authority, "stage.internal", mutual=False)
    async with probe_server(config) as (server, _):
        for ca_file in (other.ca_file, authority.ca_file):
            async with aio_channel(server.address, ClientTlsConfig(ca_file=ca_file)) as channel:
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await ask(channel)
                assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        tls = ClientTlsConfig(ca_file=authority.ca_file, server_name_override="stage.internal")
        async with aio_channel(server.address, tls) as channel:
            assert await ask(channel) == "float32"


@pytest.mark.parametrize("make", [aio_channel, sync_channel])
def test_plain_text_beyond_loopback_must_be_asked_for_by_name(make: Any) -> None:
    for address in ("192.0.2.1:50051", "host.example:50051", "127.0.0.1:1,192.0.2.1:2"):
        with pytest.raises(ConfigError, match=r"tls: \S+ is not loopback.*allow_plaintext: true"):
            make(address)


async def test_plain_text_can_be_asked_for_by_name() -> None:
    await aio_channel("192.0.2.1:50051", allow_plaintext=True).close()


@pytest.mark.parametrize("address", ["", "host", "127.0.0.1:1,", "127.0.0.1:1,host.example:2"])
def test_malformed_addresses_are_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="gRPC address"):
        aio_channel(address, allow_plaintext=True)


def test_bad_certificate_files_name_the_field(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tls\.ca_file: cannot read"):
        aio_channel("127.0.0.1:1", ClientTlsConfig(ca_file=tmp_path / "absent.pem"))


def test_keepalive_keys_are_those_that_grpc_reads() -> None:
    """The widely copied spelling with "recv" in it is ignored without a word."""
    server, client = dict(server_options()), dict(channel_options())
    assert server["grpc.http2.min_ping_interval_without_data_ms"] < client["grpc.keepalive_time_ms"]
    assert server["grpc.http2.max_ping_strikes"] == 0
    assert not [key for key in (*server, *client) if "recv" in key]
    assert "grpc.keepalive_time_ms" not in dict(channel_options(keepalive=False))


async def test_calls_go_round_several_addresses() -> None:
    async with (
        probe_server() as (one, first),
        probe_server() as (two, second),
        aio_channel(f"{one.address},{two.address}") as channel,
    ):
        await eventually_both(service_pb2_grpc.InferenceServiceStub(channel), first, second)


async def eventually_both(stub: Any, first: Any, second: Any) -> None:
    """Opens streams until both servers have one; the second connection may come up later than the first."""
    streams = []
    async with asyncio.timeout(10):
        while not (first.open_streams and second.open_streams):
            stream = stub.Generate(service_pb2.GenerateRequest(model="hang"))
            await stream.read()
            streams.append(stream)
    for stream in streams:
        stream.cancel()


async def test_a_restarted_server_is_found_again_soon() -> None:
    async with probe_server() as (server, _):
        address = server.address
        async with aio_channel(address) as channel:
            assert await ask(channel) == "float32"
            await server.stop()
            with pytest.raises(grpc.aio.AioRpcError):
                await ask(channel)
            await asyncio.sleep(1)
            async with probe_server(ServerConfig(listen=address)):
                started = time.monotonic()
                stub = service_pb2_grpc.InferenceServiceStub(channel)
                await stub.GetModelInfo(service_pb2.GetModelInfoRequest(), timeout=10, wait_for_ready=True)
                assert time.monotonic() - started < 4


async def test_a_proxy_in_the_environment_stays_out_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    async with probe_server() as (server, _), aio_channel(server.address) as channel:
        assert await ask(channel) == "float32"


async def test_a_port_that_speaks_something_else_is_unavailable_at_once() -> None:
    metrics = MetricsServer("127.0.0.1:0", [])
    metrics.start()
    try:
        async with aio_channel(metrics.address) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await ask(channel, timeout_s=8)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    finally:
        metrics.stop()


class Valve:
    """A TCP relay to one port that can go deaf: connections stay, nothing passes any more."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._open = asyncio.Event()
        self._open.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> str:
        self._server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def shut(self) -> None:
        self._open.clear()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        other_reader, other_writer = await asyncio.open_connection("127.0.0.1", self._target)
        for source, sink in ((reader, other_writer), (other_reader, writer)):
            self._tasks.add(asyncio.create_task(self._pass_on(source, sink)))

    async def _pass_on(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.closing(sink):
            while data := await source.read(65536):
                await self._open.wait()
                sink.write(data)


CHILD = """
import asyncio
from tests.support.probe_service import probe_server

async def main():
    async with probe_server() as (server, _):
        print(server.address, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.fixture
def server_process() -> Iterator[tuple[str, int]]:
    """Address and pid of a probe server in a process of its own."""
    child = subprocess.Popen([sys.executable, "-c", CHILD], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        yield child.stdout.readline().strip(), child.pid
    finally:
        child.kill()
        child.wait()


@contextlib.asynccontextmanager
async def hanging_stream(channel: grpc.aio.Channel) -> AsyncIterator[Any]:
    stream = service_pb2_grpc.InferenceServiceStub(channel).Generate(service_pb2.GenerateRequest(model="hang"))
    await stream.read()
    yield stream
    stream.cancel()


async def half_open_peers_are_found() -> None:
    async with probe_server() as (server, inference):
        valve = Valve(server.port)
        async with valve as address, aio_channel(address) as channel, hanging_stream(channel) as stream:
            valve.shut()
            started = time.monotonic()
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await asyncio.wait_for(stream.read(), 45)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            assert 20 < time.monotonic() - started < 34
            # The server, too, notices, and frees what the client held.
            await eventually(lambda: inference.open_streams == 0, 12)


async def a_process_stopped_for_twenty_seconds_keeps_its_streams(address: str, pid: int) -> None:
    async with aio_channel(address) as channel, hanging_stream(channel) as stream:
        os.kill(pid, signal.SIGSTOP)
        await asyncio.sleep(20)
        os.kill(pid, signal.SIGCONT)
        assert await ask(channel) == "float32"
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(stream.read(), 1)


async def eager_pings_on_an_idle_stream_are_no_offence() -> None:
    options = [("grpc.keepalive_time_ms", 1000), ("grpc.keepalive_permit_without_calls", 1)]
    async with probe_server() as (server, _), grpc.aio.insecure_channel(server.address, options=options) as channel:
        async with hanging_stream(channel) as stream:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(stream.read(), 25)
        assert await ask(channel) == "float32"


async def test_keepalive(server_process: tuple[str, int]) -> None:
    """The three side by side, since each is mostly waiting."""
    await asyncio.gather(
        half_open_peers_are_found(),
        a_process_stopped_for_twenty_seconds_keeps_its_streams(*server_process),
        eager_pings_on_an_idle_stream_are_no_offence(),
    )


CLIENT = """
import asyncio, sys
from forerun.inference.v1 import service_pb2, service_pb2_grpc
from services.common.metrics import MetricsServer
from services.common.rpc import aio_channel

async def main():
    async with aio_channel(sys.argv[1]) as channel:
        stream = service_pb2_grpc.InferenceServiceStub(channel).Generate(service_pb2.GenerateRequest(model="hang"))
        await stream.read()
        print("streaming", flush=True)
        await stream.read()

asyncio.run(main())
"""


async def test_a_killed_clients_call_is_closed_at_once() -> None:
    async with probe_server() as (server, inference):
        command = (sys.executable, "-c", CLIENT, server.address)
        client = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        try:
            assert client.stdout is not None
            assert await asyncio.wait_for(client.stdout.readline(), 20) == b"streaming\n"
            assert inference.open_streams == 1
            client.kill()
            await eventually(lambda: inference.open_streams == 0, 2)
        finally:
            with contextlib.suppress(ProcessLookupError):
                client.kill()
            await client.wait()
