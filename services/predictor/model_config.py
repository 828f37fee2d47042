"""``config.json`` of a remaining-length model: for which target, which states, and what its answers are worth."""

from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, ValidationError, model_validator

from services.common.errors import ConfigError

CONFIG_NAME: Final = "config.json"
THRESHOLDS: Final = (4, 8, 16, 32, 64)
"""Tokens; papers/spexis §5.2."""


class RemainingLengthConfig(BaseModel):
    """What must be known beside the weights."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

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

    def write(self, folder: Path) -> None:
        """Stores it in ``folder``."""
        (folder / CONFIG_NAME).write_text(self.model_dump_json(indent=2) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Reads it from ``folder``. Raises ``ConfigError`` when it is missing or not such a file."""
        path = folder / CONFIG_NAME
        try:
            return cls.model_validate_json(path.read_bytes())
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}; name a folder that `forerun train predictor` wrote") from None
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            field = ".".join(str(part) for part in first["loc"])
            raise ConfigError(f"{path}: {field}: {first['msg']}; train the predictor again") from None
