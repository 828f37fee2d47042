"""The remaining-length model: a three-layer perceptron over one state of a running answer (papers/spexis §5.2).

    x      = [clip((state - mean) / scale), log(1 + answer tokens)]
    chance = sigmoid(W3 relu(W2 relu(W1 x + b1) + b2) + b3)      one for each threshold, made to ascend

In NumPy: a batch of 64 takes about a millisecond, and the sidecar stays small and starts at once.
"""

from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from services.common.net_files import Tensors, check_tensors, load_net, save_net
from services.predictor.model_config import RemainingLengthConfig

WEIGHTS_NAME: Final = "predictor.safetensors"
CLIP: Final = 8.0
"""Standard deviations; residual streams have a few huge coordinates."""

Floats = NDArray[np.float32]


def weight_shapes(config: RemainingLengthConfig) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor, by name."""
    inputs, width, outputs = config.hidden_size + 1, config.width, len(config.thresholds)
    return {
        "mean": (config.hidden_size,),
        "scale": (config.hidden_size,),
        "0.weight": (width, inputs),
        "0.bias": (width,),
        "1.weight": (width, width),
        "1.bias": (width,),
        "2.weight": (outputs, width),
        "2.bias": (outputs,),
    }


class RemainingLengthModel:
    """Immutable, so any thread may use it."""

    def __init__(self, config: RemainingLengthConfig, tensors: Tensors) -> None:
        """Raises ``ValueError`` when the tensors are not those of the configuration, or not finite."""
        check_tensors(tensors, weight_shapes(config))
        self.config = config
        values = {name: tensor.astype(np.float32) for name, tensor in tensors.items()}
        self._mean, self._scale = values["mean"], values["scale"]
        self._layers = [(values[f"{index}.weight"].T.copy(), values[f"{index}.bias"]) for index in range(3)]

    def chances(self, states: NDArray[np.float16] | Floats, answer_tokens: NDArray[np.int64]) -> Floats:
        """That each answer ends within each threshold.

        Args:
            states: [rows, hidden].
            answer_tokens: that each answer has, the row's own included, [rows].

        Returns:
            [rows, thresholds], ascending in each row.
        """
        hidden = features(states, answer_tokens, self._mean, self._scale)
        for weight, bias in self._layers[:-1]:
            hidden = np.maximum(hidden @ weight + bias, 0.0)
        weight, bias = self._layers[-1]
        logits = np.clip(hidden @ weight + bias, -30.0, 30.0)
        chances: Floats = (1.0 / (1.0 + np.exp(-logits))).astype(np.float32)
        # Trained one by one, neighbours may cross by a little.
        return np.maximum.accumulate(chances, axis=1)


def features(
    states: NDArray[np.float16] | Floats, answer_tokens: NDArray[np.int64], mean: Floats, scale: Floats
) -> Floats:
    """What the first layer reads, [rows, hidden + 1]; training and serving alike."""
    standard = np.clip((states.astype(np.float32) - mean) / scale, -CLIP, CLIP)
    return np.concatenate([standard, np.log1p(answer_tokens)[:, None].astype(np.float32)], axis=1)


def save_model(folder: Path, config: RemainingLengthConfig, tensors: Tensors) -> RemainingLengthModel:
    """Writes both files and returns the model as it will be read: mean and scale as they are, weights in float16.

    Raises:
        ValueError: the tensors are not those of the configuration.
    """
    stored = {name: each if name in ("mean", "scale") else each.astype(np.float16) for name, each in tensors.items()}
    model = RemainingLengthModel(config, stored)
    save_net(folder, config, WEIGHTS_NAME, stored)
    return model


def load_model(folder: Path) -> RemainingLengthModel:
    """Raises ``ConfigError`` when a file is missing or damaged, or the two do not belong together."""
    config = RemainingLengthConfig.read(folder)
    return load_net(folder, config, WEIGHTS_NAME, lambda tensors: RemainingLengthModel(config, tensors))
