"""Configuration of one router process."""

import secrets
from pathlib import Path
from typing import Any, Self

from pydantic import Field, SecretStr, model_validator

from services.common.config import Address, ClientTlsConfig, ConfigModel, ServerConfig, TelemetryConfig, TlsConfig
from services.common.expert_profiles import ProfileName
from services.common.ledger import LedgerConfig


class ReplicaAddress(ConfigModel):
    """One replica that is always part of the fleet."""

    replica_id: str = Field(pattern=r"^[A-Za-z0-9_.:-]{1,64}$")
    """The replica's own name; one that answers with another name is not used."""
    address: Address
    """host:port of its scheduler."""


class RouteExpertsConfig(ConfigModel):
    """Who drafts for a request, chosen by its prompt (APEX-Router)."""

    model: Path
    """Folder that ``forerun train router`` wrote. A model that cannot be used leaves the choice to the replicas."""
    profile: ProfileName = "speed"
    """How much wasted draft tokens count beside speed, for requests that do not say: speed, not at all; balanced;
    efficient."""
    first_block_only: bool = False
    """True: from the second block on the replica chooses freely. False: a request keeps its expert, as in the paper."""


class RouterConfig(ConfigModel):
    """The public edge: gRPC InferenceService and OpenAI-compatible HTTP over any number of replicas."""

    router_id: str = Field(default_factory=lambda: f"router-{secrets.token_hex(4)}", pattern=r"^[A-Za-z0-9_.:-]{1,64}$")
    """Names the router to replicas and in spans. Unique per start; default: random."""
    server: ServerConfig = ServerConfig()
    """The gRPC edge. ``max_message_bytes`` bounds a gRPC request and is refused above as INVALID_ARGUMENT."""
    http_listen: Address | None = None
    """host:port of the HTTP edge, port 0 takes a free one. Null: no HTTP."""
    http_tls: TlsConfig | None = None
    """TLS of the HTTP edge. Null: plain HTTP, on loopback only unless ``server.allow_plaintext``."""
    http_args: dict[str, Any] = Field(default_factory=dict)
    """vLLM's own API-server flags with their names and types, for example tool_call_parser, reasoning_parser,
    chat_template, enable_auto_tool_choice. What the router itself decides (host, port, model, keys, TLS) is refused."""
    api_keys: list[SecretStr] = Field(default_factory=list)
    """Keys of which every request must bring one as ``Authorization: Bearer``. Empty, with no file: open. Behind a key
    and a space may stand its tenant, between whom replicas can share their time fairly."""
    api_key_file: Path | None = None
    """File with one key, or key and tenant, a line, beside ``api_keys``; empty lines and lines with # are skipped."""
    replicas: list[ReplicaAddress] = Field(default_factory=list)
    """Replicas that are always tried."""
    discover: bool = False
    """True: also use every live replica of the ledger."""
    replica_tls: ClientTlsConfig | None = None
    """How to reach replicas. Null: plain text."""
    replica_allow_plaintext: bool = False
    """True: plain text to replicas on other machines too."""
    ledger: LedgerConfig = LedgerConfig()
    """Where KV blocks are accounted."""
    telemetry: TelemetryConfig = TelemetryConfig()
    """Traces and logs."""
    expected_output_tokens: int = Field(default=256, ge=1)
    """Output tokens a choice that KV blocks are reserved for, unless the request itself allows fewer."""
    prefix_weight: float = Field(default=0.5, ge=0.0, le=10.0)
    """How much it counts that a replica has a prompt's beginning cached: it may be fuller than another one by this
    share of its KV blocks if it has all of it. 0: prompts are not looked for."""
    experts: RouteExpertsConfig | None = None
    """How experts are chosen. Null: by the replicas, block by block."""
    max_concurrent_requests: int = Field(default=1024, ge=1)
    """Requests in flight at once, both edges together; more are refused at once."""
    retry_after_ms: int = Field(default=1000, ge=1)
    """Hint in refusals: when to try again, in milliseconds."""
    max_request_bytes: int = Field(default=8 * 2**20, ge=1024)
    """Largest HTTP body in bytes; a larger one is refused with 413 before it is read."""
    default_timeout_s: float | None = Field(default=None, gt=0)
    """Deadline in seconds of requests that bring none. Null: none."""
    max_timeout_s: float | None = Field(default=None, gt=0)
    """Longest deadline in seconds, also of requests that bring none. Null: no limit."""
    tokenizer: bool = True
    """False: prompts of token ids only and no HTTP; the router then starts without loading the engine's code."""
    model: str | None = None
    """Path or Hugging Face id that tokenizer and chat template are loaded from. Null: what the first replica says."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.http_listen is not None and not self.tokenizer:
            raise ValueError("http_listen needs the tokenizer; set tokenizer: true, or http_listen: null")
        if self.discover and not self.ledger.enabled:
            raise ValueError("discover reads the ledger; set ledger.url, or discover: false with replicas listed")
        if not self.replicas and not self.discover:
            raise ValueError("replicas is empty; list at least one, or set discover: true with a ledger")
        ids = [replica.replica_id for replica in self.replicas]
        if repeated := sorted({name for name in ids if ids.count(name) > 1}):
            raise ValueError(f"replicas: {', '.join(repeated)} occurs more than once; replica_id must be unique")
        return self
