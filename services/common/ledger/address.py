"""Where Redis is, as the ledger's ``url`` says it: one server, a primary that Sentinels know, or a cluster."""

import re
from dataclasses import dataclass, replace
from typing import Literal
from urllib.parse import parse_qs, unquote, urlsplit

from services.common.address import split_address

Kind = Literal["server", "sentinel", "cluster"]

_SCHEMES: dict[str, tuple[Kind, bool]] = {
    "redis": ("server", False),
    "rediss": ("server", True),
    "unix": ("server", False),
    "redis+sentinel": ("sentinel", False),
    "rediss+sentinel": ("sentinel", True),
    "redis+cluster": ("cluster", False),
    "rediss+cluster": ("cluster", True),
}
"""Kind, and whether connections are encrypted."""

DEFAULT_PORTS: dict[Kind, int] = {"server": 6379, "sentinel": 26379, "cluster": 6379}


@dataclass(frozen=True, slots=True)
class RedisAddress:
    """A parsed ``url``.

    Attributes:
        kind: what listens there.
        tls: whether connections are encrypted.
        hosts: of the Sentinels, or of some nodes of the cluster; any one that answers will do.
        service: the primary's name among the Sentinels.
        database: number of the Sentinels' primary's database.
        username: in the URL; None: none.
        password: in the URL; None: none.
    """

    kind: Kind
    tls: bool
    hosts: tuple[tuple[str, int], ...] = ()
    service: str = ""
    database: int = 0
    username: str | None = None
    password: str | None = None


def parse_address(url: str) -> RedisAddress:
    """Raises ``ValueError``, which says what is wrong and how to write it."""
    parts = urlsplit(url)
    if parts.scheme not in _SCHEMES:
        raise ValueError(
            "must start with redis://, rediss:// (TLS), unix://, redis+sentinel:// or redis+cluster:// (both also "
            "with rediss)"
        )
    kind, tls = _SCHEMES[parts.scheme]
    # redis-py lets options in the URL override the caller's, which would undo time limits and TLS checks.
    allowed = {"db"} if kind == "server" else set()
    if extra := set(parse_qs(parts.query, keep_blank_values=True)) - allowed:
        raise ValueError(f"takes no options but db, and has {', '.join(sorted(extra))}; use the fields beside url")
    user, _, hosts = parts.netloc.rpartition("@")
    username, has_password, password = user.partition(":")
    bare = RedisAddress(
        kind, tls, username=unquote(username) or None, password=unquote(password) if has_password else None
    )
    if kind == "server":
        _check_server(url)
        return bare
    named = replace(bare, hosts=_hosts(hosts, DEFAULT_PORTS[kind]))
    if kind == "cluster":
        if parts.path not in ("", "/"):
            raise ValueError("a cluster has one database; write redis+cluster://host:port,host:port")
        return named
    found = re.fullmatch(r"/([A-Za-z0-9_.-]+)(?:/(\d+))?", parts.path)
    if found is None:
        raise ValueError("names no primary; write redis+sentinel://host:port,host:port/PRIMARY")
    return replace(named, service=found[1], database=int(found[2] or 0))


def _check_server(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme == "unix" and not parts.path:
        raise ValueError("names no socket; write unix:///path/to/redis.sock")
    if parts.scheme != "unix" and not parts.hostname:
        raise ValueError("names no host; write redis://host:port/database")
    if parts.scheme != "unix" and not re.fullmatch(r"/?|/\d+", parts.path):
        raise ValueError("ends in something else than the number of a database; write redis://host:port/0")
    if parts.port == 0:  # a port that is no number raises here, with a message of its own
        raise ValueError("names port 0, which is none")


def _hosts(text: str, default_port: int) -> tuple[tuple[str, int], ...]:
    hosts = []
    for part in text.split(","):
        if not part:
            raise ValueError("names no host; write host:port,host:port")
        host, port = split_address(part if re.search(r":\d+$", part) else f"{part}:{default_port}")
        if port == 0:
            raise ValueError("names port 0, which is none")
        hosts.append((host, port))
    return tuple(hosts)
