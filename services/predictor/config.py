"""Configuration of the predictor sidecar."""

from pathlib import Path

from pydantic import Field

from services.common.config import ConfigModel, ServerConfig, TelemetryConfig


class PredictorConfig(ConfigModel):
    """Predicts how many tokens running answers still have."""

    server: ServerConfig = ServerConfig()
    """Where stages connect."""
    models: list[Path] = Field(min_length=1)
    """Folders that ``forerun train predictor`` wrote, at most one for each target and layer."""
    max_rows: int = Field(default=1024, ge=1)
    """Most rows of one call; larger ones are refused."""
    telemetry: TelemetryConfig = TelemetryConfig()
    """Traces and logs."""
