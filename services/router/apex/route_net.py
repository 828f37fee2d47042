"""The route model (papers/apex section 4.2): what each expert and first depth is worth for a prompt, in NumPy.

    x        = clip((features - mean) * per_scale)
    outcomes = (W2 relu(W1 x + b1) + b2) * outcome_scale + outcome_mean      two for each action
    speedup  = exp(outcome 0), over no drafts; wasted = max(0, outcome 1), rejected drafts for each token of the answer
    utility  = log speedup + log max(1 - price wasted, LEAST)

The price of a wasted draft is the profile's, as where a replica chooses (``Profile.waste_price``), so one model serves
every profile. Plain is the reference: speedup 1, nothing wasted. Own derivation; the paper trains utilities as such.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from services.common.net_files import Tensors, check_tensors, load_net, save_net
from services.router.apex.prompt_features import feature_count
from services.router.apex.route_net_config import RouteNetConfig

WEIGHTS_NAME: Final = "router.safetensors"
CLIP: Final = 5.0
"""Standard deviations; what is farther out was hardly trained on."""
LEAST: Final = 0.05
"""Of a token's worth that its wasted drafts leave."""
OUTCOMES: Final = ("log_speedup", "wasted")

Floats = NDArray[np.float32]


def weight_shapes(config: RouteNetConfig) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor, by name."""
    inputs, outputs = feature_count(config.embedding_width), len(config.actions) * len(OUTCOMES)
    return {
        "embedding": (config.vocab_size, config.embedding_width),
        "mean": (inputs,),
        "per_scale": (inputs,),
        "0.weight": (config.width, inputs),
        "0.bias": (config.width,),
        "1.weight": (outputs, config.width),
        "1.bias": (outputs,),
        "outcome_mean": (outputs,),
        "outcome_scale": (outputs,),
    }


@dataclass(frozen=True, slots=True, eq=False)
class RouteOutlook:
    """By action, [..., actions]."""

    speedup: Floats
    wasted: Floats

    def utility(self, waste_price: float) -> Floats:
        """To be maximised."""
        return utility(np.log(self.speedup), self.wasted, waste_price)


def utility(log_speedup: Floats, wasted: Floats, waste_price: float) -> Floats:
    """Of what was observed or is expected."""
    worth: Floats = log_speedup + np.log(np.maximum(1.0 - waste_price * wasted, LEAST))
    return worth


class RouteNet:
    """Immutable, so any thread may use it."""

    def __init__(self, config: RouteNetConfig, tensors: Tensors) -> None:
        """Raises ``ValueError`` when the tensors are not those of the configuration, or not finite."""
        check_tensors(tensors, weight_shapes(config))
        self.config = config
        self.embedding: NDArray[np.float16] = tensors["embedding"].astype(np.float16)
        values = {name: each.astype(np.float32) for name, each in tensors.items() if name != "embedding"}
        self._mean, self._per_scale = values["mean"], values["per_scale"]
        self._layers = [(values[f"{index}.weight"].T.copy(), values[f"{index}.bias"]) for index in range(2)]
        self._outcome_mean, self._outcome_scale = values["outcome_mean"], values["outcome_scale"]

    def outlook(self, features: Floats) -> RouteOutlook:
        """[..., features] of ``prompt_features`` -> [..., actions]."""
        (first, bias), (second, second_bias) = self._layers
        standard = np.clip((features - self._mean) * self._per_scale, -CLIP, CLIP)
        hidden = np.maximum(standard @ first + bias, 0.0)
        found = (hidden @ second + second_bias) * self._outcome_scale + self._outcome_mean
        outcomes = found.reshape(*features.shape[:-1], len(self.config.actions), len(OUTCOMES))
        # Nothing is gained or lost without drafts, by definition.
        outcomes[..., 0, :] = 0.0
        return RouteOutlook(np.exp(outcomes[..., 0]), np.maximum(outcomes[..., 1], 0.0))


def save_route_net(folder: Path, config: RouteNetConfig, tensors: Tensors) -> RouteNet:
    """Writes both files and returns the model as it will be read.

    Raises:
        ValueError: the tensors are not those of the configuration.
    """
    stored = {name: each.astype(np.float16 if name == "embedding" else np.float32) for name, each in tensors.items()}
    model = RouteNet(config, stored)
    save_net(folder, config, WEIGHTS_NAME, stored)
    return model


def load_route_net(folder: Path) -> RouteNet:
    """Raises ``ConfigError`` when a file is missing or damaged, or the two do not belong together."""
    config = RouteNetConfig.read(folder)
    return load_net(folder, config, WEIGHTS_NAME, lambda tensors: RouteNet(config, tensors))
