"""What the scheduler's front process tells its engine-core child process.

vLLM starts that child itself, so the only way in is the engine configuration: the settings travel as
``additional_config["forerun"]``, which is exactly ``EngineCoreSettings.model_dump(mode="json")``. The scheduler
subclass, the executor and the plugin read them back with ``EngineCoreSettings.from_additional_config``.
"""

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import Field

from services.common.config import ClientTlsConfig, ConfigModel, TelemetryConfig
from services.common.ledger import LedgerConfig
from services.scheduler.experts_config import ExpertsConfig
from services.scheduler.lookahead.config import AdmissionConfig, PredictorLink
from services.scheduler.speculation_config import SpeculationConfig

ADDITIONAL_CONFIG_KEY = "forerun"
"""Where the settings sit in vLLM's ``additional_config``."""

RESERVATION_HEADER = "forerun-reservation"
"""Key in vLLM's trace headers under which a router's KV reservation reaches the engine core."""

TENANT_HEADER = "forerun-tenant"
"""As above, for on whose behalf the request is."""


class EngineCoreSettings(ConfigModel):
    """Everything Forerun's code inside the engine-core process needs to know."""

    replica_id: str
    """Names the replica in the ledger, metrics and spans."""
    generation: int
    """Counts starts of the replica (milliseconds since the epoch at start); a later one fences the earlier."""
    address: str
    """host:port of this scheduler, as routers reach it."""
    stages: list[list[str]] = Field(default_factory=list)
    """host:port of each stage process, by pipeline rank, then tensor rank; empty: vLLM's own executor runs."""
    rendezvous: str = ""
    """host:port for torch.distributed, opened by pipeline rank 0, tensor rank 0; empty: that rank's host in
    ``stages``, and a port that it chooses."""
    layer_partition: list[int] = Field(default_factory=list)
    """Layers of each stage, first to last; empty: split evenly. The last stage also carries the LM head, so it
    often does best with fewer."""
    micro_batching: bool = True
    """False: all decoding requests form one batch, however many stages there are."""
    embedding: Literal["device", "host"] = "device"
    """Where the first stage keeps the token embedding's weight."""
    speculation: SpeculationConfig | None = None
    """How the replica speculates across its stages; None: it does not."""
    experts: ExpertsConfig | None = None
    """Who drafts blocks of tokens on a replica of one stage; None: nobody."""
    admission: AdmissionConfig = AdmissionConfig()
    """When waiting requests start."""
    predictor: PredictorLink | None = None
    """The predictor of remaining lengths, which the stages call; None: none."""
    stage_tls: ClientTlsConfig | None = None
    """How to reach the stages; None: plain text, loopback only."""
    stage_allow_plaintext: bool = False
    """True: plain text to stages on other machines too."""
    step_timeout_s: float = Field(default=300.0, gt=0)
    """A step without an answer for this long fails the engine."""
    ledger: LedgerConfig
    """Where block counts are published."""
    telemetry: TelemetryConfig
    """Logs and traces of the engine-core process."""
    metrics_listen: str | None = None
    """host:port of the engine-core process's Prometheus page; None: no page."""
    metrics_allow_plaintext: bool = False
    """True: that page, which is plain HTTP, may listen on other addresses than loopback."""
    engine_args_json: str = "{}"
    """The engine arguments that stages build their configuration from: the plain ones, before the front's own
    additions, with the parallel sizes of ``stages``."""
    max_message_bytes: int = Field(default=16 * 2**20, gt=0)
    """Largest gRPC message to and from a stage."""

    def to_additional_config(self) -> dict[str, Any]:
        """The value of vLLM's ``additional_config`` engine argument."""
        return {ADDITIONAL_CONFIG_KEY: self.model_dump(mode="json")}

    @classmethod
    def from_additional_config(cls, additional_config: object) -> Self:
        """Reads what ``to_additional_config`` wrote.

        Raises:
            LookupError: the engine was not configured by Forerun's front process.
            pydantic.ValidationError: the settings come from another version.
        """
        if not isinstance(additional_config, Mapping) or ADDITIONAL_CONFIG_KEY not in additional_config:
            raise LookupError(f"additional_config has no {ADDITIONAL_CONFIG_KEY!r} entry: not started by Forerun")
        return cls.model_validate(additional_config[ADDITIONAL_CONFIG_KEY])
