"""``config.json`` of a depth model: what its tensors mean, and for which operating point it was trained."""

from pathlib import Path
from typing import Final, Literal, Self

from pydantic import BaseModel, ConfigDict, PositiveInt, ValidationError, model_validator

from services.common.errors import ConfigError
from services.common.expert import DEPTHS, Expert
from services.scheduler.apex.features import EXPERT_ROWS, FEATURES, FEATURES_VERSION
from services.scheduler.apex.profiles import ProfileName

CONFIG_NAME: Final = "config.json"
RETRAIN: Final = "train it again with `forerun train depth`"


class DepthNetConfig(BaseModel):
    """What must be known beside the weights."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

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

    def write(self, folder: Path) -> None:
        """Stores it in ``folder``."""
        (folder / CONFIG_NAME).write_text(self.model_dump_json(indent=2) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Reads it from ``folder``.

        Raises:
            ConfigError: it is missing, not such a file, or of a model that another version trained.
        """
        path = folder / CONFIG_NAME
        try:
            return cls.model_validate_json(path.read_bytes())
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}; name a folder that `forerun train depth` wrote") from None
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            field = ".".join(str(part) for part in first["loc"])
            raise ConfigError(f"{path}: {field + ': ' if field else ''}{first['msg']}; {RETRAIN}") from None
