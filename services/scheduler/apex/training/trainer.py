"""Trains a depth model; stops when validation gets no better."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np
import torch

from services.common.training.early_stopping import Course, Limits, train_until_no_better
from services.scheduler.apex.training.ablation import Ablation
from services.scheduler.apex.training.examples import Examples
from services.scheduler.apex.training.losses import LossWeights, depth_loss
from services.scheduler.apex.training.torch_net import TorchDepthNet


@dataclass(frozen=True, slots=True)
class TrainOptions:
    """How the model is trained."""

    epochs: int = 60
    """Passes over the data, at most."""
    patience: int = 8
    """Passes without a better validation loss after which it stops."""
    batch: int = 512
    """Blocks of a step, or a few more, since groups stay whole."""
    learning_rate: float = 2e-3
    weight_decay: float = 0.01
    width: int = 48
    depth_width: int = 24
    seed: int = 0
    """Of weights and order."""
    weights: LossWeights = field(default_factory=LossWeights)
    ablations: tuple[Ablation, ...] = ()

    @property
    def without(self) -> tuple[str, ...]:
        """Features that the model must not see."""
        return tuple(name for each in self.ablations for name in each.features)

    def ablated(self) -> Self:
        """With the weights of losses that are left out at 0."""
        weights = self.weights
        if Ablation.SURVIVAL in self.ablations:
            weights = replace(weights, survival=0.0)
        if Ablation.COST in self.ablations:
            weights = replace(weights, cost=0.0, throughput=0.0)
        return replace(self, weights=weights)


def train(
    examples: Examples, validation: Examples, options: TrainOptions, on_epoch: Callable[[int, float], None]
) -> tuple[TorchDepthNet, Course]:
    """Returns the weights with the lowest validation loss; the same ones every time for the same data and options.

    Args:
        examples: to learn from.
        validation: to stop by.
        options: how.
        on_epoch: called with the number of epochs done and the validation loss.
    """
    options = options.ablated()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(options.seed)
        net = TorchDepthNet(options.width, options.depth_width, options.without)
    net.standardise(examples.features, examples.outcomes)
    optimizer = torch.optim.AdamW(net.parameters(), options.learning_rate, weight_decay=options.weight_decay)

    def validation_loss() -> float:
        with torch.inference_mode():
            return float(_loss(net, validation, options.weights))

    course = train_until_no_better(
        net,
        lambda epoch: _epoch(net, optimizer, examples, options, epoch),
        validation_loss,
        Limits(options.epochs, options.patience),
        on_epoch,
    )
    return net, course


def _epoch(
    net: TorchDepthNet, optimizer: torch.optim.Optimizer, examples: Examples, options: TrainOptions, epoch: int
) -> None:
    for group in optimizer.param_groups:
        group["lr"] = options.learning_rate * 0.5 * (1 + np.cos(np.pi * (epoch - 1) / options.epochs))
    for batch in examples.batches(options.batch, np.random.default_rng((options.seed, epoch))):
        loss = _loss(net, batch, options.weights)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()


def _loss(net: TorchDepthNet, blocks: Examples, weights: LossWeights) -> torch.Tensor:
    logits, outcomes = net(blocks.features, blocks.experts, blocks.depths)
    return depth_loss(logits, outcomes, net.standard(blocks.outcomes), blocks, weights)
