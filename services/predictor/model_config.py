"""``config.json`` of a remaining-length model: for which target, which states, and what its answers are worth."""

from typing import Annotated, ClassVar, Final, Literal, Self

from pydantic import Field, PositiveInt, model_validator

from services.common.net_files import NetConfig

THRESHOLDS: Final = (4, 8, 16, 32, 64)
"""Tokens; papers/spexis §5.2."""


class RemainingLengthConfig(NetConfig):
    """What must be known beside the weights."""

    made_by: ClassVar = "forerun train predictor"

    format_version: Literal[1] = 1
    """Of this file and of the tensors beside it."""
    target: str
    """Name of the target model; for people."""
    target_fingerprint: str
    """Of the target model; see ``services/common/target_fingerprint.py``."""
    layer: PositiveInt
    """Layers of the target before the residual stream that the model reads."""
    hidden_size: PositiveInt
    """Of that stream."""
    width: PositiveInt
    """Of both hidden layers."""
    thresholds: tuple[PositiveInt, ...] = THRESHOLDS
    """Tokens; ascending."""
    cut_offs: tuple[Annotated[float, Field(ge=0.0, le=1.0)], ...]
    """Of each threshold: from this chance on the model says that the answer ends within it; 1: it never says so."""
    precision: float = Field(gt=0.0, lt=1.0)
    """How often that is right, as the cut-offs were set."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if list(self.thresholds) != sorted(set(self.thresholds)):
            raise ValueError("thresholds must ascend")
        if len(self.cut_offs) != len(self.thresholds):
            raise ValueError(f"cut_offs must be one for each of the {len(self.thresholds)} thresholds")
        return self
