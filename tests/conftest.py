"""Fixtures that need nothing but the machine: free ports, temporary Redis servers."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.support.free_ports import free_port
from tests.support.redis_server import RedisServer, redis_server_path

# Examples are timed by the whole machine's load, so a deadline would fail tests for what others do.
settings.register_profile("forerun", deadline=None)
settings.load_profile("forerun")


@pytest.fixture(name="free_port")
def free_port_fixture() -> Callable[[], int]:
    """A function that gives a port nothing listens on; call it once per port."""
    return free_port


@pytest.fixture
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A running Redis of this test alone: ``.url``, ``.kill()``, ``.start()``, ``.pause()``, ``.resume()``."""
    yield from _running(tmp_path_factory.mktemp("redis"))


@pytest.fixture(scope="session")
def shared_redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A running Redis for tests that use keys of their own and never stop it."""
    yield from _running(tmp_path_factory.mktemp("redis"))


def _running(folder: Path) -> Iterator[RedisServer]:
    if redis_server_path() is None:
        pytest.skip("no redis-server on this machine and no wheel of it for this platform")
    server = RedisServer(folder)
    server.start()
    try:
        yield server
    finally:
        server.kill()
