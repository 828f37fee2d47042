"""A route model that says what a test wants it to say."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from services.common.expert_action import PLAIN, Action
from services.router.apex.prompt_features import SCALARS, feature_count
from services.router.apex.route_net import RouteNet, save_route_net, weight_shapes
from services.router.apex.route_net_config import RouteNetConfig

EMBEDDING_WIDTH = 2


def _parts(
    outcomes: Mapping[Action, tuple[float, float]], vocab_size: int, by_scalar: Mapping[str, float]
) -> tuple[RouteNetConfig, dict[str, np.ndarray]]:
    config = RouteNetConfig(
        target="tiny",
        vocab_size=vocab_size,
        embedding_width=EMBEDDING_WIDTH,
        width=len(SCALARS),
        actions=(PLAIN, *outcomes),
    )
    tensors = {name: np.zeros(shape, np.float32) for name, shape in weight_shapes(config).items()}
    tensors["per_scale"][:] = 1.0
    tensors["outcome_scale"][:] = 1.0
    said = [(np.log(speedup), wasted) for speedup, wasted in outcomes.values()]
    tensors["outcome_mean"][2:] = np.array(said).reshape(-1)
    tensors["0.weight"][:, : len(SCALARS)] = np.eye(len(SCALARS))
    for name, slope in by_scalar.items():
        tensors["1.weight"][-2, SCALARS.index(name)] = slope
    assert tensors["mean"].shape == (feature_count(EMBEDDING_WIDTH),)
    return config, tensors


def route_net(outcomes: Mapping[Action, tuple[float, float]], vocab_size: int = 1000, **by_scalar: float) -> RouteNet:
    """Says ``outcomes`` (speedup, wasted) of each action for every prompt.

    Args:
        outcomes: of drafting actions.
        vocab_size: of the target.
        by_scalar: how much the log speedup of the last action grows with each of some scalars.
    """
    return RouteNet(*_parts(outcomes, vocab_size, by_scalar))


def write_route_net(folder: Path, outcomes: Mapping[Action, tuple[float, float]], vocab_size: int) -> Path:
    """The same on disk; returns ``folder``."""
    save_route_net(folder, *_parts(outcomes, vocab_size, {}))
    return folder
