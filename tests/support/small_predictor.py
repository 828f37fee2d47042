"""A remaining-length model with random weights."""

from pathlib import Path
from typing import Any

import numpy as np
from transformers import AutoConfig

from services.common.target_fingerprint import target_fingerprint
from services.predictor.model import RemainingLengthModel, save_model, weight_shapes
from services.predictor.model_config import RemainingLengthConfig


def make_predictor_config(**changes: Any) -> RemainingLengthConfig:
    fields = {
        "target": "tiny",
        "target_fingerprint": "f" * 64,
        "layer": 2,
        "hidden_size": 64,
        "width": 16,
        "cut_offs": (0.5,) * 5,
        "precision": 0.83,
    }
    return RemainingLengthConfig.model_validate(fields | changes)


def random_tensors(config: RemainingLengthConfig, seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    tensors = {
        name: rng.normal(size=shape, scale=0.3).astype(np.float32) for name, shape in weight_shapes(config).items()
    }
    return tensors | {"scale": np.abs(tensors["scale"]) + 0.5}


def write_random_predictor(folder: Path, **changes: Any) -> RemainingLengthModel:
    """Written into ``folder``; returned as it is read from there."""
    config = make_predictor_config(**changes)
    return save_model(folder, config, random_tensors(config))


def write_predictor_for(folder: Path, model: Path, layer: int) -> Path:
    """One that fits a checkpoint."""
    hf_config = AutoConfig.from_pretrained(str(model))
    write_random_predictor(
        folder,
        target_fingerprint=target_fingerprint(str(model), hf_config),
        layer=layer,
        hidden_size=hf_config.hidden_size,
    )
    return folder
