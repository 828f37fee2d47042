"""Trains a route model; stops when validation gets no better."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import smooth_l1_loss

from services.common.training.early_stopping import Course, Limits, train_until_no_better
from services.router.apex.route_net import CLIP, OUTCOMES

LOG_SPEEDUP = OUTCOMES.index("log_speedup")
_LEAST_SPREAD = 1e-4


@dataclass(frozen=True, slots=True)
class TrainOptions:
    """How the model is trained."""

    epochs: int = 600
    """Passes over the data, at most; each is one step, since there are only hundreds of prompts."""
    patience: int = 60
    """Passes without a better validation loss after which it stops."""
    learning_rate: float = 3e-3
    weight_decay: float = 0.1
    width: int = 32
    """Of the hidden layer."""
    dropout: float = 0.2
    """Of the hidden layer: prompts are few."""
    embedding_width: int = 16
    """Numbers that stand for a token of the prompt."""
    ranking: float = 0.3
    """Weight of the loss by which actions of a prompt are ranked."""
    ranking_scale: float = 0.1
    """Difference of log speedups that counts as one in that loss."""
    seed: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Lesson:
    """[prompts, features], [prompts, actions, outcomes] and [prompts, actions]; see ``RouteExamples``."""

    features: Tensor
    outcomes: Tensor
    known: Tensor

    @classmethod
    def of(cls, features: NDArray[np.float32], outcomes: NDArray[np.float32], known: NDArray[np.bool_]) -> "Lesson":
        """The same as tensors."""
        return cls(torch.from_numpy(features), torch.from_numpy(outcomes), torch.from_numpy(known))


class TorchRouteNet(nn.Module):
    """The route model in torch; learns outcomes that are standardised, ``tensors`` gives those that are not."""

    def __init__(self, lesson: Lesson, width: int, dropout: float) -> None:
        """Means and scales are those of ``lesson``."""
        super().__init__()
        inputs, outputs = lesson.features.shape[1], lesson.outcomes.shape[1] * lesson.outcomes.shape[2]
        self.first, self.second = nn.Linear(inputs, width), nn.Linear(width, outputs)
        self.dropout = nn.Dropout(dropout)
        spread = lesson.features.std(0, unbiased=False)
        # A feature that never changes in the traces says nothing; served, it must not say anything either.
        self.register_buffer("per_scale", torch.where(spread > _LEAST_SPREAD, 1 / spread.clamp_min(_LEAST_SPREAD), 0.0))
        self.register_buffer("mean", lesson.features.mean(0))
        weights = lesson.known[..., None].float()
        mean = (lesson.outcomes * weights).sum(0) / weights.sum(0).clamp_min(1)
        variance = ((lesson.outcomes - mean) ** 2 * weights).sum(0) / weights.sum(0).clamp_min(1)
        self.register_buffer("outcome_mean", mean)
        self.register_buffer("outcome_scale", variance.sqrt().clamp_min(_LEAST_SPREAD))

    def forward(self, features: Tensor) -> Tensor:
        """[prompts, features] -> standardised outcomes, [prompts, actions, outcomes]."""
        standard = ((features - self.mean) * self.per_scale).clamp(-CLIP, CLIP)
        hidden = self.dropout(torch.relu(self.first(standard)))
        made: Tensor = self.second(hidden).view(-1, *self.outcome_mean.shape)
        return made

    def tensors(self) -> dict[str, NDArray[np.float32]]:
        """By the names of ``route_net.weight_shapes``, but the embedding."""
        tensors = {
            "mean": self.mean,
            "per_scale": self.per_scale,
            "0.weight": self.first.weight,
            "0.bias": self.first.bias,
            "1.weight": self.second.weight,
            "1.bias": self.second.bias,
            "outcome_mean": self.outcome_mean.reshape(-1),
            "outcome_scale": self.outcome_scale.reshape(-1),
        }
        return {name: each.detach().clone().numpy() for name, each in tensors.items()}


def train(
    lesson: Lesson, validation: Lesson, options: TrainOptions, on_epoch: Callable[[int, float], None]
) -> tuple[TorchRouteNet, Course]:
    """Returns the weights with the lowest validation loss; the same ones every time for the same data and options.

    Args:
        lesson: to learn from.
        validation: to stop by.
        options: how.
        on_epoch: called with the number of epochs done and the validation loss.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(options.seed)
        net = TorchRouteNet(lesson, options.width, options.dropout)
        optimizer = torch.optim.AdamW(net.parameters(), options.learning_rate, weight_decay=options.weight_decay)

        def run_epoch(_: int) -> None:
            net.train()
            optimizer.zero_grad(set_to_none=True)
            route_loss(net, lesson, options).backward()
            optimizer.step()

        def validation_loss() -> float:
            net.eval()
            with torch.inference_mode():
                return float(route_loss(net, validation, options))

        limits = Limits(options.epochs, options.patience)
        course = train_until_no_better(net, run_epoch, validation_loss, limits, on_epoch)
    return net, course


def route_loss(net: TorchRouteNet, lesson: Lesson, options: TrainOptions) -> Tensor:
    """SmoothL1 of what was recorded, and the cross-entropy of actions that are ranked by their speedup."""
    predicted = net(lesson.features)
    wanted = (lesson.outcomes - net.outcome_mean) / net.outcome_scale
    each = smooth_l1_loss(predicted, wanted, reduction="none")
    regression = each[lesson.known].mean()
    speedup = predicted[..., LOG_SPEEDUP] * net.outcome_scale[:, LOG_SPEEDUP] + net.outcome_mean[:, LOG_SPEEDUP]
    unknown = ~lesson.known
    scores = (speedup / options.ranking_scale).masked_fill(unknown, -torch.inf)
    target = (lesson.outcomes[..., LOG_SPEEDUP] / options.ranking_scale).masked_fill(unknown, -torch.inf).softmax(-1)
    ranking = -(target * scores.log_softmax(-1).masked_fill(unknown, 0.0)).sum(-1).mean()
    return regression + options.ranking * ranking
