"""``config.json`` of a depth model: what its tensors mean, and for which operating point it was trained."""

from typing import ClassVar, Literal, Self

from pydantic import PositiveInt, model_validator

from services.common.expert import DEPTHS, Expert
from services.common.expert_profiles import ProfileName
from services.common.net_files import NetConfig
from services.scheduler.apex.features import EXPERT_ROWS, FEATURES, FEATURES_VERSION


class DepthNetConfig(NetConfig):
    """What must be known beside the weights."""

    made_by: ClassVar = "forerun train depth"

    format_version: Literal[1] = 1
    """Of this file and of the tensors beside it."""
    features_version: int = FEATURES_VERSION
    """Of what the features mean."""
    features: tuple[str, ...] = FEATURES
    """That it reads, in order."""
    experts: tuple[Expert, ...] = EXPERT_ROWS
    """Rows of its embedding of experts."""
    trained_on: tuple[Expert, ...]
    """Experts that its traces had; of others it knows nothing."""
    depths: tuple[int, ...] = DEPTHS
    """Rows of its embedding of depths."""
    width: PositiveInt
    """Of both hidden layers of the encoder."""
    depth_width: PositiveInt
    """Of the layer that joins a depth."""
    profile: ProfileName
    """Whose utility the utility head predicts."""
    ablations: tuple[str, ...] = ()
    """What it was trained without; for comparisons only."""

    @model_validator(mode="after")
    def _as_here(self) -> Self:
        """Everything that this version of the program fixes is as this version has it."""
        if self.features_version != FEATURES_VERSION or self.features != FEATURES:
            raise ValueError(f"features: version {self.features_version}, this is version {FEATURES_VERSION}")
        if self.experts != EXPERT_ROWS:
            raise ValueError(f"experts: must be {', '.join(EXPERT_ROWS)}")
        if self.depths != DEPTHS:
            raise ValueError(f"depths: must be {', '.join(map(str, DEPTHS))}")
        return self
