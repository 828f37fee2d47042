"""The depth model (papers/apex section 4.4): a shared encoder and four heads, in NumPy.

    x      = clip((features - mean) / scale)
    state  = relu(W2 relu(W1 x + expert embedding + b1) + b2)          for each expert that may draft
    hazard = sigmoid(Wh state + bh)                                    by position
    action = relu(Wa state + depth embedding + ba)                     for each depth
    log cost, log throughput, utility = (Wo action + bo) * scale + mean

Hazards are read before the depth comes in, other than in the paper: what becomes of the j-th draft does not depend on
how many are drafted behind it, so one curve serves all depths, expected accepted lengths never fall with the depth, and
a ninth of the work is left.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from services.common.net_files import Tensors, check_tensors, load_net, save_net
from services.scheduler.apex.arms import POSITIONS
from services.scheduler.apex.depth_net_config import DepthNetConfig

WEIGHTS_NAME: Final = "depth.safetensors"
CLIP: Final = 8.0
"""Standard deviations; what is farther out was hardly trained on."""

OUTCOMES: Final = ("log_cost", "log_throughput", "utility")

Floats = NDArray[np.float32]


def weight_shapes(config: DepthNetConfig) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor, by name."""
    inputs, width, deep, outputs = len(config.features), config.width, config.depth_width, len(OUTCOMES)
    return {
        "mean": (inputs,),
        "scale": (inputs,),
        "expert": (len(config.experts), width),
        "input.weight": (width, inputs),
        "input.bias": (width,),
        "hidden.weight": (width, width),
        "hidden.bias": (width,),
        "hazard.weight": (POSITIONS, width),
        "hazard.bias": (POSITIONS,),
        "depth": (len(config.depths), deep),
        "action.weight": (deep, width),
        "action.bias": (deep,),
        "outcome.weight": (outputs, deep),
        "outcome.bias": (outputs,),
        "outcome_mean": (outputs,),
        "outcome_scale": (outputs,),
    }


@dataclass(frozen=True, slots=True, eq=False)
class Outcomes:
    """What the model expects of blocks, [requests, experts, depths] each.

    Attributes:
        log_cost: log of the seconds of the block, drafting and verifying.
        log_throughput: log of the tokens a second that the request gets by it.
        utility: of the profile that the model was trained for; to be compared only.
    """

    log_cost: Floats
    log_throughput: Floats
    utility: Floats


class DepthNet:
    """Immutable."""

    def __init__(self, config: DepthNetConfig, tensors: Tensors) -> None:
        """Raises ``ValueError`` when the tensors are not those of the configuration, or not finite."""
        check_tensors(tensors, weight_shapes(config))
        if not (tensors["scale"] > 0).all():
            raise ValueError("scale has numbers that are not above 0")
        self.config = config
        values = {name: np.ascontiguousarray(each, np.float32) for name, each in tensors.items()}
        self._mean, self._per_scale = values["mean"], 1.0 / values["scale"]
        # What an expert adds to the first layer is always the same.
        self._expert = values["expert"] + values["input.bias"]
        self._depth = values["depth"] + values["action.bias"]
        self._input, self._action, self._outcome = (
            values[f"{name}.weight"].T.copy() for name in ("input", "action", "outcome")
        )
        self._hidden, self._hidden_bias = values["hidden.weight"].T.copy(), values["hidden.bias"]
        self._hazard, self._hazard_bias = values["hazard.weight"].T.copy(), values["hazard.bias"]
        self._outcome_bias = values["outcome.bias"] * values["outcome_scale"] + values["outcome_mean"]
        self._outcome *= values["outcome_scale"]

    def encode(self, features: Floats, experts: NDArray[np.int64]) -> Floats:
        """The states that the heads read.

        Args:
            features: by expert, [requests, experts, features].
            experts: who these are, rows of ``config.experts``, [experts].

        Returns:
            [requests, experts, width].
        """
        requests, count, inputs = features.shape
        standard: Floats = features.reshape(-1, inputs) - self._mean
        standard *= self._per_scale
        np.maximum(standard, -CLIP, out=standard)
        np.minimum(standard, CLIP, out=standard)
        first: Floats = (standard @ self._input).reshape(requests, count, -1)
        first += self._expert[experts]
        _relu(first)
        second: Floats = np.matmul(first.reshape(requests * count, -1), self._hidden)
        second += self._hidden_bias
        _relu(second)
        return second.reshape(requests, count, -1)

    def hazard_logits(self, encoded: Floats) -> Floats:
        """Log-odds of rejection at each position; [requests, experts, positions]."""
        # One product of matrices; NumPy would make one for each request out of three axes.
        logits: Floats = encoded.reshape(-1, encoded.shape[-1]) @ self._hazard
        logits += self._hazard_bias
        return logits.reshape(*encoded.shape[:-1], POSITIONS)

    def outcomes(self, encoded: Floats, depths: slice) -> Outcomes:
        """Of blocks with some of ``config.depths``."""
        requests, count, width = encoded.shape
        joined = (encoded.reshape(-1, width) @ self._action)[:, None, :] + self._depth[depths]
        _relu(joined)
        found = joined.reshape(-1, joined.shape[-1]) @ self._outcome + self._outcome_bias
        cost, throughput, utility = found.reshape(requests, count, -1, len(OUTCOMES)).transpose(3, 0, 1, 2)
        return Outcomes(cost, throughput, utility)


def _relu(values: Floats) -> None:
    """In place; against an array of zeros, since NumPy is four times slower against a number."""
    np.maximum(values, np.zeros_like(values), out=values)


def save_depth_net(folder: Path, config: DepthNetConfig, tensors: Tensors) -> DepthNet:
    """Writes both files and returns the model.

    Raises:
        ValueError: the tensors are not those of the configuration.
    """
    model = DepthNet(config, tensors)
    save_net(folder, config, WEIGHTS_NAME, {name: each.astype(np.float32) for name, each in tensors.items()})
    return model


def load_depth_net(folder: Path) -> DepthNet:
    """Raises ``ConfigError`` when a file is missing or damaged, or the two do not belong together."""
    config = DepthNetConfig.read(folder)
    return load_net(folder, config, WEIGHTS_NAME, lambda tensors: DepthNet(config, tensors))
