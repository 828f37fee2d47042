"""The secrets that deploy/compose/make-secrets.sh writes: what each Redis user may do with a real Redis."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from redis.exceptions import AuthenticationError, NoPermissionError

from services.common.ledger import LedgerConfig
from tests.integration.ledger_support import eventually, quick, row_that, running_view, running_writer, totals
from tests.support.compose_project import make_secrets
from tests.support.redis_server import RedisServer, redis_server_path


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("secrets")
    make_secrets(folder)
    return folder


@pytest.fixture(scope="module")
def server(secrets: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    if redis_server_path() is None:
        pytest.skip("no redis-server on this machine and no wheel of it for this platform")
    server = RedisServer(tmp_path_factory.mktemp("redis"), "--aclfile", str(secrets / "users.acl"))
    server.start()
    yield server
    server.stop()


def config_of(user: str, server: RedisServer, secrets: Path) -> LedgerConfig:
    return quick(server.url, username=user, password_file=secrets / f"redis-{user}")


def client_of(user: str, server: RedisServer, secrets: Path) -> redis.Redis:
    password = (secrets / f"redis-{user}").read_text().strip()
    return redis.Redis(port=server.port, username=user, password=password)


def test_secrets_are_for_their_owner_alone_and_stay_the_same(secrets: Path) -> None:
    assert {file.stat().st_mode & 0o077 for file in secrets.iterdir()} == {0}
    before = {file.name: file.read_bytes() for file in secrets.iterdir() if not file.name.startswith("forerun.")}
    make_secrets(secrets)
    assert {name: (secrets / name).read_bytes() for name in before} == before
    assert not any(secret in (secrets / "users.acl").read_text() for secret in passwords(secrets))


def passwords(secrets: Path) -> list[str]:
    return [file.read_text().strip() for file in secrets.glob("redis-*")]


async def test_schedulers_and_routers_can_do_their_work(server: RedisServer, secrets: Path) -> None:
    writes, reads = config_of("scheduler", server, secrets), config_of("router", server, secrets)
    with running_writer(writes) as writer:
        writer.prefixes(["a"], [])
        writer.publish(totals(100, held=10, running=1))
        row = await row_that(reads, lambda row: row.replica.held == 10)
        assert row.replica.replica_id == "r0"
        async with running_view(reads) as view:
            await eventually(lambda: "r0" in view.replicas)
            assert await view.prefix_holders(["a"]) == {"r0": 1}
            assert await view.reserve("r0", "request", 5)
            await row_that(reads, lambda row: row.replica.reserved == 5)
            await view.release("request")
            await row_that(reads, lambda row: row.replica.reserved == 0)


@pytest.mark.parametrize("user", ["router", "scheduler"])
@pytest.mark.parametrize("command", ["FLUSHALL", "CONFIG GET *", "ACL LIST", "KEYS *", "SHUTDOWN", "GET other"])
def test_they_can_do_nothing_else(server: RedisServer, secrets: Path, user: str, command: str) -> None:
    with pytest.raises(NoPermissionError):
        client_of(user, server, secrets).execute_command(*command.split())


def test_nobody_comes_in_without_a_password(server: RedisServer) -> None:
    with pytest.raises(AuthenticationError):
        redis.Redis(port=server.port).ping()
