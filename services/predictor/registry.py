"""The loaded models, by target and layer."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from services.common.errors import ConfigError, RequestEndedError
from services.common.outcome import Outcome
from services.predictor.model import RemainingLengthModel, load_model


class ModelRegistry:
    """Filled at start, read ever after."""

    def __init__(self, models: Iterable[RemainingLengthModel]) -> None:
        """Raises ``ConfigError`` when two models are for the same target and layer."""
        self._models: dict[tuple[str, int], RemainingLengthModel] = {}
        for model in models:
            key = (model.config.target_fingerprint, model.config.layer)
            if key in self._models:
                raise ConfigError(
                    f"models: two are for {model.config.target} after layer {model.config.layer}; remove one"
                )
            self._models[key] = model

    @classmethod
    def load(cls, folders: Sequence[Path]) -> "ModelRegistry":
        """Loads each folder. Raises ``ConfigError`` for one that cannot be used."""
        return cls(load_model(folder) for folder in folders)

    def find(self, target_fingerprint: str, layer: int) -> RemainingLengthModel:
        """The model of a target and layer. Raises ``RequestEndedError`` (not found), naming what there is."""
        if (model := self._models.get((target_fingerprint, layer))) is not None:
            return model
        loaded = ", ".join(f"{each.config.target} after layer {each.config.layer}" for each in self)
        raise RequestEndedError(
            Outcome.REJECTED_INVALID,
            f"target_fingerprint: no model for {target_fingerprint[:12]!r} after layer {layer}; loaded: {loaded}",
            field="target_fingerprint",
            not_found=True,
        )

    def __iter__(self) -> Iterator[RemainingLengthModel]:
        return iter(self._models.values())
