"""Configuration that several services share. Each service's own ``config.py`` builds on ``ConfigModel``."""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from services.common.address import split_address


class ConfigModel(BaseModel):
    """Frozen; refuses unknown fields and non-finite numbers; the text under a field is its documentation."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)


def _checked_address(value: str) -> str:
    split_address(value)
    return value


Address = Annotated[str, AfterValidator(_checked_address)]
"""``host:port``, checked for its form only."""


class TlsConfig(ConfigModel):
    """A server's TLS. Mutual by default: a client without a certificate of the named authority is refused."""

    cert_file: Path
    """PEM certificate chain of this server."""
    key_file: Path
    """PEM private key of this server."""
    ca_file: Path | None = None
    """PEM certificates of the authority that signs client certificates."""
    require_client_cert: bool = True
    """False: clients are encrypted but not authenticated."""

    @model_validator(mode="after")
    def _check_authority(self) -> Self:
        if self.require_client_cert and self.ca_file is None:
            raise ValueError("require_client_cert needs ca_file; name it, or set require_client_cert: false")
        return self


class ClientTlsConfig(ConfigModel):
    """A client's TLS."""

    ca_file: Path
    """PEM certificates of the authority that signs server certificates."""
    cert_file: Path | None = None
    """PEM certificate chain of this client, for servers that ask for one."""
    key_file: Path | None = None
    """PEM private key of this client."""
    server_name_override: str | None = None
    """The name expected in the server's certificate, when it is not the host that is dialled."""

    @model_validator(mode="after")
    def _check_pair(self) -> Self:
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError("cert_file and key_file belong together; name both or neither")
        return self


class ServerConfig(ConfigModel):
    """How a service listens."""

    listen: Address = "127.0.0.1:0"
    """host:port of the gRPC server. Port 0 takes a free one."""
    metrics_listen: Address | None = None
    """host:port of the Prometheus exposition (plain HTTP). Port 0 takes a free one; null: none."""
    tls: TlsConfig | None = None
    """Null: plain text, which is allowed on loopback only."""
    allow_plaintext: bool = False
    """True: serve plain text on addresses that other machines reach."""
    max_message_bytes: int = Field(default=16 * 2**20, ge=64 * 2**10, le=512 * 2**20)
    """Largest message taken or sent, in bytes. A larger request is refused as invalid."""
    max_concurrent_rpcs: int = Field(default=4096, ge=1)
    """Calls in flight at once, of all methods; more are refused with RESOURCE_EXHAUSTED."""
    drain_timeout_s: float = Field(default=30.0, ge=0.0, le=3600.0)
    """Seconds that calls in flight get to finish when the service stops."""


class TelemetryConfig(ConfigModel):
    """Traces and logs."""

    otlp_endpoint: str | None = None
    """OTLP/gRPC collector, for example http://127.0.0.1:4317. Null: spans go to ``traces_dir``."""
    traces_dir: Path | None = None
    """Folder of local trace files, read by ``forerun trace``. Null, and no collector: spans are discarded."""
    sample_ratio: float = Field(default=1.0, ge=0.0, le=1.0)
    """Share of requests that are traced; a caller's own sampling decision comes first."""
    max_trace_file_bytes: int = Field(default=64 * 2**20, ge=2**16)
    """Bytes of local trace files kept per process; the older half is thrown away when they are full."""
    max_block_spans: int = Field(default=32, ge=0, le=4096)
    """Blocks of speculation that get spans of their own, per request; the sum over all blocks always has one."""
    log_format: Literal["json", "console"] = "json"
    """One JSON object a line, or lines for people."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Messages below this level are not written."""

    @property
    def keeps_spans(self) -> bool:
        """Spans go somewhere."""
        return self.otlp_endpoint is not None or self.traces_dir is not None
