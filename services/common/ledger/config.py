"""Where the KV ledger is and how fast it notices what changed."""

from pathlib import Path
from typing import Annotated, Self
from urllib.parse import urlsplit, urlunsplit

from pydantic import AfterValidator, Field, model_validator

from services.common.config import ConfigModel
from services.common.ledger.address import parse_address


def _checked_url(value: str) -> str:
    parse_address(value)
    return value


class LedgerConfig(ConfigModel):
    """The KV ledger in Redis. Every process of a fleet uses the same ``url`` and ``fleet``."""

    url: Annotated[str, AfterValidator(_checked_url)] | None = Field(default=None, repr=False)
    """redis://, rediss:// or unix:// address of one Redis server; redis+sentinel://host:port,host:port/PRIMARY of one
    that Sentinels watch; redis+cluster://host:port,host:port of a cluster (rediss+ for TLS); null: no ledger. Prefer
    ``password_file`` to a password in the URL: configuration is passed between processes and may be logged by the
    engine."""
    username: str | None = None
    """Redis ACL user; null: the one in the URL, or Redis' default user."""
    password_file: Path | None = None
    """File whose first line is the password, read again at every connect so that it can be rotated."""
    tls_ca_file: Path | None = None
    """PEM certificates of the authority that signed the server's certificate; null: the system's."""
    tls_cert_file: Path | None = None
    """PEM certificate chain of this client, for servers that ask for one."""
    tls_key_file: Path | None = None
    """PEM private key of this client."""
    fleet: str = Field(default="default", pattern=r"^[A-Za-z0-9_.-]{1,64}$")
    """Separates several Forerun fleets in one Redis; part of every key."""
    lease_s: float = Field(default=6.0, ge=0.2, le=3600.0)
    """Seconds after which the entries of a silent replica, and a reservation that nobody admits, expire."""
    flush_interval_s: float = Field(default=0.1, ge=0.005, le=60.0)
    """A replica writes at most this often, in seconds. With nothing new it still writes every third of ``lease_s``,
    or every second if that is more often."""
    refresh_interval_s: float = Field(default=0.2, ge=0.01, le=60.0)
    """A router reads all replicas this often, in seconds."""
    connect_timeout_s: float = Field(default=1.0, ge=0.05, le=30.0)
    """Longest wait for a connection to Redis, in seconds."""
    command_timeout_s: float = Field(default=0.5, ge=0.02, le=30.0)
    """Longest wait for an answer of Redis, in seconds; also the longest that a reservation may delay a request."""

    prefix_blocks: int = Field(default=16384, ge=0)
    """KV blocks of cached prompts that a replica names in the index, the newest ones; 0: none. Routers send a request
    where its prompt's beginning is cached. About 150 bytes of Redis' memory each."""
    prefix_life_s: float = Field(default=1800.0, ge=1.0)
    """Seconds after which the names of a replica that is gone leave the index."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.flush_interval_s > self.lease_s / 3:
            raise ValueError("flush_interval_s must be at most a third of lease_s, or live replicas would expire")
        if (self.tls_cert_file is None) != (self.tls_key_file is None):
            raise ValueError("tls_cert_file and tls_key_file belong together; name both or neither")
        if self.tls_ca_file and not self.uses_tls:
            raise ValueError("tls_ca_file needs a rediss:// url")
        if self.tls_cert_file and not self.uses_tls:
            raise ValueError("tls_cert_file needs a rediss:// url")
        if self.password_file and self.url and parse_address(self.url).password:
            raise ValueError("password_file and a password in url: keep the file only")
        return self

    @property
    def enabled(self) -> bool:
        """Whether there is a ledger at all."""
        return self.url is not None

    @property
    def uses_tls(self) -> bool:
        """Whether connections to Redis are encrypted."""
        return self.url is not None and parse_address(self.url).tls

    @property
    def lease_ms(self) -> int:
        """The lease in milliseconds, Redis' unit of expiry."""
        return max(1, round(self.lease_s * 1000))

    @property
    def place(self) -> str:
        """The URL without user and password, for messages."""
        if self.url is None:
            return "(no ledger)"
        parts = urlsplit(self.url)
        return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
