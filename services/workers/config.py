"""Configuration of one stage worker process."""

from pathlib import Path

from pydantic import Field

from services.common.config import ClientTlsConfig, ConfigModel, ServerConfig, TelemetryConfig
from services.workers.synthetic_config import SyntheticConfig


class StageConfig(ConfigModel):
    """One device's stage. Its place in the pipeline and the model come from the scheduler when it connects."""

    server: ServerConfig = Field(default_factory=ServerConfig)
    """Where the scheduler and the previous stage connect."""

    telemetry: TelemetryConfig = Field(default_factory=TelemetryConfig)
    """Logs, traces and metrics."""

    cores: list[int] | None = None
    """CPU cores to run on, also the number of compute threads. Default: all that the process may use."""

    device: int | None = None
    """CUDA device index; sets CUDA_VISIBLE_DEVICES before the driver starts. Default: as inherited."""

    peer_tls: ClientTlsConfig | None = None
    """TLS towards the next stage. Null: plain text, which is allowed on loopback only."""

    peer_allow_plaintext: bool = False
    """True: plain text to a next stage on another machine too."""

    activation_timeout_s: float = Field(default=60.0, gt=0)
    """A step whose activations have not come from the previous stage by then fails."""

    load_timeout_s: float = Field(default=600.0, gt=0)
    """Longest time that loading the model may take, joining the other ranks included."""

    cache_dir: Path | None = None
    """Where vLLM keeps what it compiles. Default: vLLM's own place."""

    synthetic: SyntheticConfig | None = None
    """A device that only takes time, instead of the model: for measuring the scheduling. Default: the model."""
