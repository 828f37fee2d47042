"""Redis with users, with TLS, and Redis that is no single server: used, or refused with the reason."""

import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
import redis

from services.cli.certificate_authority import CertificateAuthority
from services.common.ledger import LedgerUnavailableError, read_ledger
from tests.integration.ledger_support import eventually, quick, row_that, running_view, running_writer, totals
from tests.support.redis_server import RedisServer
from tests.support.tls_front import mutual_tls, start_tls_front


@contextmanager
def running_redis(folder: Path, *arguments: str) -> Iterator[RedisServer]:
    """A Redis with arguments of its own, on a port below those of which its cluster port would be none."""
    folder.mkdir(exist_ok=True)
    while (server := RedisServer(folder, *arguments)).port > 55000:
        pass
    server.start()
    try:
        yield server
    finally:
        server.kill()


@asynccontextmanager
async def tls_in_front_of(server: RedisServer, context: ssl.SSLContext) -> AsyncIterator[int]:
    """The port of a TLS end before Redis."""
    front = await start_tls_front("127.0.0.1", 0, context, server.port)
    try:
        yield front.sockets[0].getsockname()[1]
    finally:
        front.close()


async def test_a_unix_socket_serves_too(tmp_path: Path) -> None:
    socket = tmp_path / "redis.sock"
    with running_redis(tmp_path / "redis", "--unixsocket", str(socket)):
        config = quick(f"unix://{socket}?db=3")
        with running_writer(config) as writer:
            writer.publish(totals(100))
            await row_that(config, lambda row: True)
            async with running_view(config) as view:
                assert await view.reserve("r0", "x", 1)


async def test_user_and_password_come_from_a_file_that_may_change(tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("first\n")
    user = ("--user", "ledger", "on", ">first", "~forerun:*", "+@read", "+@write", "+@scripting", "+time")
    with running_redis(tmp_path / "redis", *user, "--requirepass", "x") as server:
        config = quick(server.url, username="ledger", password_file=password)
        with running_writer(config) as writer:
            writer.publish(totals(100))
            await row_that(config, lambda row: True)
            async with running_view(config) as view:
                assert await view.reserve("r0", "x", 1)
        password.write_text("second\n")
        async with running_view(config) as view:
            assert "Redis refuses the user or password" in view.reason
            password.write_text("first\n")
            await eventually(lambda: view.reachable)


async def test_a_user_who_may_only_read_sees_but_does_not_reserve(redis_server: RedisServer) -> None:
    config = quick(redis_server.url)
    with running_writer(config) as writer:
        writer.publish(totals(100))
        await row_that(config, lambda row: True)
        admin = redis.Redis.from_url(redis_server.url)
        admin.execute_command("ACL", "SETUSER", "reader", "on", ">s", "~forerun:*", "+@read", "+@scripting", "+time")
        async with running_view(quick(redis_server.url.replace("//", "//reader:s@"))) as view:
            assert view.replicas["r0"].total == 100
            for _ in range(3):
                with pytest.raises(LedgerUnavailableError, match="reserve"):
                    await view.reserve("r0", "x", 1)
            assert view.reachable, "a refusal is not an outage"


async def test_a_cluster_node_is_refused_with_advice(tmp_path: Path) -> None:
    with (
        running_redis(tmp_path / "here", "--cluster-enabled", "yes") as here,
        running_redis(tmp_path / "owner", "--cluster-enabled", "yes") as owner,
    ):
        redis.Redis.from_url(owner.url).execute_command("CLUSTER", "ADDSLOTS", *range(16384))
        node = redis.Redis.from_url(here.url, decode_responses=True)
        node.execute_command("CLUSTER", "MEET", "127.0.0.1", owner.port)
        await eventually(lambda: f"127.0.0.1:{owner.port}" in _moved(node), 10)
        config = quick(here.url)
        with running_writer(config) as writer:
            writer.publish(totals(100))
            async with running_view(config) as view:
                assert "write its address as redis+cluster://" in view.reason
                assert f"127.0.0.1:{owner.port}" in view.reason
                with pytest.raises(LedgerUnavailableError, match="node of a Redis Cluster"):
                    await view.reserve("r0", "x", 1)
                assert not writer.reachable
                # The scripts themselves are fit for a cluster: on the node that owns the slot they work.
                with running_writer(quick(owner.url)) as other:
                    other.publish(totals(100), {"a": 1})
                    await eventually(lambda: other.reachable, 10)
                    await row_that(quick(owner.url), lambda row: row.held_requests == {"a": 1})


def _moved(node: "redis.Redis") -> str:
    try:
        node.get("forerun:{default}:replicas")
    except redis.ResponseError as error:
        return str(error)
    return ""


async def test_tls_authenticates_both_ends(redis_server: RedisServer, tmp_path: Path) -> None:
    ours, theirs = CertificateAuthority.create(tmp_path / "ours"), CertificateAuthority.create(tmp_path / "theirs")
    server_pair, client_pair, stranger = ours.issue("redis"), ours.issue("router"), theirs.issue("stranger")
    context = mutual_tls(ours.ca_file, server_pair.cert_file, server_pair.key_file)
    async with tls_in_front_of(redis_server, context) as port:
        pair = {"tls_cert_file": client_pair.cert_file, "tls_key_file": client_pair.key_file}
        config = quick(f"rediss://127.0.0.1:{port}/0", tls_ca_file=ours.ca_file, **pair)
        with running_writer(config) as writer:
            writer.publish(totals(100))
            await row_that(config, lambda row: True)
            async with running_view(config) as view:
                assert await view.reserve("r0", "x", 1)
        for bad in (
            config.model_copy(update={"tls_ca_file": theirs.ca_file}),
            config.model_copy(update={"tls_cert_file": stranger.cert_file, "tls_key_file": stranger.key_file}),
            config.model_copy(update={"tls_cert_file": None, "tls_key_file": None}),
            config.model_copy(update={"tls_ca_file": tmp_path / "absent.pem"}),
            quick(f"redis://127.0.0.1:{port}/0"),
        ):
            with pytest.raises(LedgerUnavailableError):
                await read_ledger(bad)
