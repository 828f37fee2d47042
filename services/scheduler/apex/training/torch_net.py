"""The depth model in torch, tensor by tensor that of ``depth_net``."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from services.common.expert import DEPTHS
from services.scheduler.apex.arms import POSITIONS
from services.scheduler.apex.depth_net import CLIP, OUTCOMES, Floats
from services.scheduler.apex.features import EXPERT_ROWS, FEATURES


class TorchDepthNet(nn.Module):
    """Learns outcomes that are standardised; ``tensors`` gives those that are not."""

    def __init__(self, width: int, depth_width: int, without: Sequence[str] = ()) -> None:
        """``without``: names of features that it must not see."""
        super().__init__()
        self.input = nn.Linear(len(FEATURES), width)
        self.hidden = nn.Linear(width, width)
        self.hazard = nn.Linear(width, POSITIONS)
        self.action = nn.Linear(width, depth_width)
        self.outcome = nn.Linear(depth_width, len(OUTCOMES))
        self.expert = nn.Parameter(0.1 * torch.randn(len(EXPERT_ROWS), width))
        self.depth = nn.Parameter(0.1 * torch.randn(len(DEPTHS), depth_width))
        for name, size in (("mean", len(FEATURES)), ("outcome_mean", len(OUTCOMES))):
            self.register_buffer(name, torch.zeros(size))
        for name, size in (("scale", len(FEATURES)), ("outcome_scale", len(OUTCOMES))):
            self.register_buffer(name, torch.ones(size))
        self.register_buffer("mask", torch.tensor([float(name not in without) for name in FEATURES]))

    def standardise(self, features: Tensor, outcomes: Tensor) -> None:
        """Takes means and scales from what it will learn from: [blocks, features] and [blocks, outcomes]."""
        self.mean.copy_(features.mean(0))
        self.scale.copy_(_spread(features))
        self.outcome_mean.copy_(outcomes.mean(0))
        self.outcome_scale.copy_(_spread(outcomes))

    def forward(self, features: Tensor, experts: Tensor, depths: Tensor) -> tuple[Tensor, Tensor]:
        """Log-odds of rejection, [blocks, positions], and standardised outcomes, [blocks, outcomes].

        Args:
            features: [blocks, features].
            experts: rows of ``EXPERT_ROWS``, [blocks].
            depths: rows of ``DEPTHS``, [blocks].
        """
        standard = ((features - self.mean) / self.scale).clamp(-CLIP, CLIP) * self.mask
        state = torch.relu(self.input(standard) + self.expert[experts])
        state = torch.relu(self.hidden(state))
        action = torch.relu(self.action(state) + self.depth[depths])
        return self.hazard(state), self.outcome(action)

    def standard(self, outcomes: Tensor) -> Tensor:
        """Outcomes as ``forward`` gives them."""
        return (outcomes - self.outcome_mean) / self.outcome_scale

    def tensors(self) -> dict[str, Floats]:
        """By the names of ``depth_net.weight_shapes``."""
        tensors = {name: each.detach().clone() for name, each in self.state_dict().items()}
        tensors["input.weight"] *= tensors.pop("mask")
        return {name: each.numpy() for name, each in tensors.items()}


def _spread(values: Tensor) -> Tensor:
    """Standard deviation; 1 for what never changes."""
    spread = values.std(0, unbiased=False)
    return torch.where(spread > 1e-6, spread, 1.0)
