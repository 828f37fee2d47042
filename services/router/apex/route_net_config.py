"""``config.json`` of a route model: what its tensors mean, and what it knows of."""

from typing import ClassVar, Literal, Self

from pydantic import PositiveInt, model_validator

from services.common.expert_action import PLAIN, Action
from services.common.net_files import NetConfig
from services.router.apex.prompt_features import FEATURES_VERSION, SCALARS


class RouteNetConfig(NetConfig):
    """What must be known beside the weights."""

    made_by: ClassVar = "forerun train router"

    format_version: Literal[1] = 1
    """Of this file and of the tensors beside it."""
    features_version: int = FEATURES_VERSION
    """Of what the features mean."""
    scalars: tuple[str, ...] = SCALARS
    """Features that are no embedding, in order."""
    target: str
    """Name of the target model; for people."""
    vocab_size: PositiveInt
    """Of the target."""
    embedding_width: PositiveInt
    """Numbers that stand for a token of the prompt."""
    width: PositiveInt
    """Of the hidden layer."""
    actions: tuple[Action, ...]
    """That it was trained on, plain first: rows of its outputs. Of others it knows nothing."""

    @model_validator(mode="after")
    def _as_here(self) -> Self:
        if self.features_version != FEATURES_VERSION or self.scalars != SCALARS:
            raise ValueError(f"scalars: version {self.features_version}, this is version {FEATURES_VERSION}")
        if self.actions[:1] != (PLAIN,) or len(set(self.actions)) != len(self.actions):
            raise ValueError("actions: must be different ones, plain first")
        return self
