"""Configuration of a device that is not there."""

from typing import Annotated

from pydantic import Field

from services.common.config import ConfigModel
from services.common.latency_profile import LatencyProfile


class SyntheticConfig(ConfigModel):
    """A synthetic device: takes a given time for every step and computes nothing. For replicas of several stages."""

    step: LatencyProfile
    """Time of a step by its rows (tokens that are prefilled or decoded), drafting included."""
    draft: LatencyProfile | None = None
    """The part of it that the first stage drafts for, after its activations have left. Null: no time."""
    acceptance: tuple[Annotated[float, Field(ge=0.0, le=1.0)], ...] = ()
    """With speculation: the recorded share (0 to 1) of right drafts, in equal shares of the drafts by confidence, least
    first. One value: confidence tells nothing."""
    seed: int = Field(default=0, ge=0, lt=2**63)
    """Which drafts are right: the same ones for the same text and seed."""
