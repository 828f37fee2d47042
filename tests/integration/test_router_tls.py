"""TLS on every side of the router: clients, replicas, HTTP; plain text refused where others could read it."""

import asyncio
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from starlette.types import Receive, Scope, Send

from services.cli.certificate_authority import CertificateAuthority
from services.client import ForerunClient
from services.common.config import ClientTlsConfig, TlsConfig
from services.common.errors import ConfigError
from services.common.outcome import Outcome
from services.router.http_server import HttpServer, bind_http, bound_address
from tests.support.fleet import FAST, Answer, Fleet, endless
from tests.support.router_process import RouterProcess
from tests.support.waiting import eventually


@pytest.fixture
def authority(tmp_path: Path) -> CertificateAuthority:
    return CertificateAuthority.create(tmp_path / "certificates")


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    started = Fleet(tmp_path)
    yield started
    started.end()


def server_tls(authority: CertificateAuthority, name: str) -> dict[str, str]:
    pair = authority.issue(name)
    return {"cert_file": str(pair.cert_file), "key_file": str(pair.key_file), "ca_file": str(authority.ca_file)}


def client_tls(authority: CertificateAuthority, name: str) -> ClientTlsConfig:
    pair = authority.issue(name)
    return ClientTlsConfig(ca_file=authority.ca_file, cert_file=pair.cert_file, key_file=pair.key_file)


async def test_mutual_tls_from_client_to_replica(fleet: Fleet, authority: CertificateAuthority, tmp_path: Path) -> None:
    scheduler = fleet.scheduler(wait=False, fake=FAST, server={"tls": server_tls(authority, "scheduler")})
    router = fleet.router(
        {"r0": scheduler},
        wait=False,
        server={"tls": server_tls(authority, "router")},
        replica_tls=client_tls(authority, "router-client").model_dump(mode="json"),
    )
    await eventually(lambda: "replica connected" in router.log, 20)
    async with ForerunClient(router.address, client_tls(authority, "client")) as client:
        assert await Answer(client, sampling=endless(max_tokens=3)).outcome() is Outcome.LENGTH
    stranger = CertificateAuthority.create(tmp_path / "strangers")
    for tls in (
        ClientTlsConfig(ca_file=authority.ca_file),  # no certificate of its own
        client_tls(authority, "other").model_copy(update={"ca_file": stranger.ca_file}),  # does not trust the router
        client_tls(stranger, "client").model_copy(update={"ca_file": authority.ca_file}),  # is not trusted by it
        None,  # plain text
    ):
        async with ForerunClient(router.address, tls, attempts=1) as client:
            assert await Answer(client, timeout_s=3).outcome(5) in (Outcome.REJECTED_UNAVAILABLE, Outcome.DEADLINE)


async def test_a_router_without_a_certificate_reaches_no_replica(fleet: Fleet, authority: CertificateAuthority) -> None:
    scheduler = fleet.scheduler(wait=False, fake=FAST, server={"tls": server_tls(authority, "scheduler")})
    router = fleet.router({"r0": scheduler}, wait=False)
    await eventually(lambda: router.health("") == "SERVING", 20)
    await asyncio.sleep(1)
    assert router.health() == "NOT_SERVING"
    assert "replica connected" not in router.log


@pytest.mark.parametrize(
    ("listen", "replica", "field"),
    [("0.0.0.0:0", "127.0.0.1:1", "listen"), ("127.0.0.1:0", "replica.test:1", "replica.test")],
    ids=["edge", "replica"],
)
def test_plain_text_that_others_could_read_is_refused(tmp_path: Path, listen: str, replica: str, field: str) -> None:
    router = RouterProcess(tmp_path, {"r0": replica}, server={"listen": listen}).spawn()
    try:
        assert router.wait(20) == 2
        assert "allow_plaintext" in router.log
        assert field in router.log
    finally:
        router.end()


async def hello(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "lifespan":
        while (await receive())["type"] != "lifespan.shutdown":
            await send({"type": "lifespan.startup.complete"})
        await send({"type": "lifespan.shutdown.complete"})
        return
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"hello"})


async def test_https_with_and_without_client_certificates(authority: CertificateAuthority) -> None:
    for mutual in (False, True):
        tls = TlsConfig(**server_tls(authority, "https"), require_client_cert=mutual)
        bound = bind_http("127.0.0.1:0", tls, allow_plaintext=False)
        server = HttpServer(hello, bound, tls, 10)
        await server.start()
        try:
            url = f"https://{bound_address('127.0.0.1:0', bound)}/"
            trust = ssl.create_default_context(cafile=str(authority.ca_file))
            async with httpx.AsyncClient(verify=trust) as client:
                if mutual:
                    with pytest.raises(httpx.HTTPError):
                        await client.get(url)
                else:
                    assert (await client.get(url)).text == "hello"
            pair = authority.issue("https-client")
            trust.load_cert_chain(pair.cert_file, pair.key_file)
            async with httpx.AsyncClient(verify=trust) as client:
                assert (await client.get(url)).text == "hello"
        finally:
            began = time.monotonic()
            await server.stop(2)
            assert time.monotonic() - began < 4
            bound.close()


def test_http_addresses_are_checked(authority: CertificateAuthority, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="http_listen"):
        bind_http("0.0.0.0:0", None, allow_plaintext=False)
    bind_http("0.0.0.0:0", None, allow_plaintext=True).close()
    taken = bind_http("127.0.0.1:0", None, allow_plaintext=False)
    taken.listen()
    with pytest.raises(ConfigError, match="cannot bind"):
        bind_http(bound_address("127.0.0.1:0", taken), None, allow_plaintext=False)
    broken = server_tls(authority, "broken") | {"key_file": str(tmp_path / "missing.pem")}
    with pytest.raises(ConfigError, match="http_tls"):
        HttpServer(hello, taken, TlsConfig(**broken), 10)
    taken.close()


async def test_a_hanging_exchange_does_not_hold_up_the_stop() -> None:
    async def hang(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await hello(scope, receive, send)
        await asyncio.sleep(600)

    bound = bind_http("127.0.0.1:0", None, allow_plaintext=False)
    server = HttpServer(hang, bound, None, 10)
    await server.start()
    async with httpx.AsyncClient() as client:
        asking = asyncio.create_task(client.get(f"http://{bound_address('127.0.0.1:0', bound)}/"))
        await asyncio.sleep(0.3)
        began = time.monotonic()
        await server.stop(3)
        assert time.monotonic() - began < 5
        await asyncio.gather(asking, return_exceptions=True)
    bound.close()
