"""Connections to Redis: bounded in time, never retried underneath, errors in words that name the fix."""

import asyncio
from pathlib import Path
from typing import Any, TypeAlias

from redis import ConnectionPool, Redis, RedisCluster, Sentinel
from redis.asyncio import ConnectionPool as AsyncConnectionPool
from redis.asyncio import Redis as AsyncRedis
from redis.asyncio import RedisCluster as AsyncRedisCluster
from redis.asyncio import Sentinel as AsyncSentinel
from redis.asyncio.cluster import ClusterNode as AsyncClusterNode
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import EqualJitterBackoff, NoBackoff
from redis.cluster import ClusterNode
from redis.credentials import CredentialProvider
from redis.exceptions import (
    AskError,
    AuthenticationError,
    BusyLoadingError,
    ClusterCrossSlotError,
    ClusterDownError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisClusterException,
    RedisError,
)
from redis.maint_notifications import MaintNotificationsConfig
from redis.retry import Retry

from services.common.ledger.address import RedisAddress, parse_address
from services.common.ledger.config import LedgerConfig

LEDGER_ERRORS = (RedisError, RedisClusterException, OSError)
"""What a call to Redis may raise while Redis is away, refuses, or is not what it should be."""

AnyRedis: TypeAlias = Redis | RedisCluster
AnyAsyncRedis: TypeAlias = AsyncRedis | AsyncRedisCluster


def connect(config: LedgerConfig) -> AnyRedis:
    """A blocking client with one connection. One of a cluster asks for its nodes at once, and raises
    ``LEDGER_ERRORS``; others connect at their first command."""
    url = _require_url(config)
    address, options = parse_address(url), _options(config)
    if address.kind == "cluster":
        nodes = [ClusterNode(host, port) for host, port in address.hosts]  # type: ignore[no-untyped-call]
        return RedisCluster(startup_nodes=nodes, **_cluster_options(options, address))
    if address.kind == "sentinel":
        never = {"retry": Retry(NoBackoff(), 0)}
        sentinel_options = _sentinel_options(options, address) | never
        primary = _primary_options(options, address) | never
        sentinel = Sentinel(address.hosts, sentinel_kwargs=sentinel_options)  # type: ignore[no-untyped-call]
        client: Redis = sentinel.master_for(address.service, **primary, max_connections=1)  # type: ignore[no-untyped-call]
        return client
    return Redis.from_pool(ConnectionPool.from_url(url, max_connections=1, **options))


def connect_async(config: LedgerConfig, max_connections: int) -> AnyAsyncRedis:
    """An asyncio client; connects at its first command. The caller limits the time of its calls."""
    url = _require_url(config)
    address, options = parse_address(url), _options(config)
    # With a limit of its own redis-py sends through asyncio.wait_for, which in Python 3.11 may swallow the caller's
    # cancellation: a task that reserves would then run on after its request was cancelled.
    options["socket_timeout"] = None
    if address.kind == "cluster":
        nodes = [AsyncClusterNode(host, port) for host, port in address.hosts]
        extra = _cluster_options(options, address) | {"retry": AsyncRetry(NoBackoff(), 1)}
        return AsyncRedisCluster(startup_nodes=nodes, max_connections=max_connections, **extra)
    if address.kind == "sentinel":
        # A Sentinel that hangs must not: nobody else limits how long it is waited for.
        never = {"retry": AsyncRetry(NoBackoff(), 0)}
        sentinel_options = _sentinel_options(options, address) | {"socket_timeout": config.command_timeout_s} | never
        sentinel = AsyncSentinel(address.hosts, sentinel_kwargs=sentinel_options)  # type: ignore[no-untyped-call]
        primary = _primary_options(options, address) | never
        client: AsyncRedis = sentinel.master_for(address.service, **primary, max_connections=max_connections)
        return client
    pool = AsyncConnectionPool.from_url(url, max_connections=max_connections, **options)
    return AsyncRedis.from_pool(pool)


class Backoff:
    """Delays between attempts that never end: exponential with jitter, at most ``cap_s`` seconds."""

    def __init__(self, base_s: float = 0.05, cap_s: float = 1.0) -> None:
        self._delays = EqualJitterBackoff(cap=cap_s, base=base_s)
        self._failures = 0

    def failed(self) -> float:
        """Counts a failure; returns the seconds to wait before the next attempt."""
        # The library computes base * 2**failures, which overflows a float after a night of failures.
        self._failures = min(self._failures + 1, 16)
        return float(self._delays.compute(self._failures))

    def succeeded(self) -> None:
        """The next failure starts from the shortest delay again."""
        self._failures = 0


def explain(error: BaseException) -> str:
    """What is wrong with Redis, and what to do where waiting does not help."""
    text = str(error) or type(error).__name__
    for kinds, advice in _ADVICE:
        if isinstance(error, kinds):
            return f"{advice} ({text})"
    return text


_ADVICE: tuple[tuple[tuple[type[BaseException], ...], str], ...] = (
    # MovedError is an AskError.
    (
        (AskError, ClusterDownError, ClusterCrossSlotError),
        "this is a node of a Redis Cluster; write its address as redis+cluster://host:port",
    ),
    ((AuthenticationError,), "Redis refuses the user or password; check username and password_file"),
    ((NoPermissionError,), "the Redis user may not do this; docs/ledger.md lists the rights it needs"),
    ((ReadOnlyError,), "this is a read-only copy; name the primary Redis server"),
    ((OutOfMemoryError,), "Redis is out of memory"),
    ((BusyLoadingError,), "Redis is still loading its data"),
    ((TimeoutError,), "no answer in time"),
)


def _require_url(config: LedgerConfig) -> str:
    if config.url is None:
        raise ValueError("the ledger is not configured: url is null")
    return config.url


def _options(config: LedgerConfig) -> dict[str, Any]:
    """Of every connection to a server that holds data."""
    options: dict[str, Any] = {
        "socket_timeout": config.command_timeout_s,
        "socket_connect_timeout": config.connect_timeout_s,
        "decode_responses": True,
        "encoding_errors": "replace",
        # No greetings that only newer servers understand; replies as lists on every version.
        "protocol": 2,
        "driver_info": None,
        "maint_notifications_config": MaintNotificationsConfig(enabled=False),
    }
    if config.password_file is not None:
        options["credential_provider"] = _PasswordFile(config.password_file, config.username)
    elif config.username is not None:
        options["username"] = config.username
    if not _require_url(config).startswith("unix:"):
        options["socket_keepalive"] = True
    if config.uses_tls:
        options["ssl_ca_certs"] = _path(config.tls_ca_file)
        options["ssl_certfile"] = _path(config.tls_cert_file)
        options["ssl_keyfile"] = _path(config.tls_key_file)
    return options


def _in_url(address: RedisAddress) -> dict[str, Any]:
    """What redis-py itself would read of a single server's URL."""
    named = {"username": address.username, "password": address.password}
    return {"ssl": address.tls} | {name: value for name, value in named.items() if value is not None}


def _cluster_options(options: dict[str, Any], address: RedisAddress) -> dict[str, Any]:
    """Once is enough to follow a node's "moved"; whoever calls tries again."""
    return options | _in_url(address) | {"retry": Retry(NoBackoff(), 1)}


def _primary_options(options: dict[str, Any], address: RedisAddress) -> dict[str, Any]:
    return options | _in_url(address) | {"db": address.database}


def _sentinel_options(options: dict[str, Any], address: RedisAddress) -> dict[str, Any]:
    """Of connections to Sentinels, which have passwords of their own, if any."""
    names = ("socket_timeout", "socket_connect_timeout", "protocol", "driver_info", "maint_notifications_config")
    tls = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
    return {name: options[name] for name in (*names, *tls) if name in options} | {"ssl": address.tls}


def _path(path: Path | None) -> str | None:
    return None if path is None else str(path)


class _PasswordFile(CredentialProvider):
    """Reads the password at every connect."""

    def __init__(self, path: Path, username: str | None) -> None:
        self._path = path
        self._username = username

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        try:
            lines = self._path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise AuthenticationError(f"cannot read password_file {self._path}: {error}") from error
        password = lines[0] if lines else ""
        return (password,) if self._username is None else (self._username, password)

    async def get_credentials_async(self) -> tuple[str] | tuple[str, str]:
        return await asyncio.to_thread(self.get_credentials)
