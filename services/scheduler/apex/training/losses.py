"""The objective of papers/apex section 4.6."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import smooth_l1_loss, softplus

from services.scheduler.apex.depth_net import OUTCOMES
from services.scheduler.apex.training.examples import Examples

_UTILITY = OUTCOMES.index("utility")


@dataclass(frozen=True, slots=True)
class LossWeights:
    """Of the parts; 0 leaves one out. Own choice: the paper's are not in the summary that this follows."""

    survival: float = 1.0
    cost: float = 0.5
    throughput: float = 0.5
    utility: float = 1.0
    ranking: float = 0.5


def depth_loss(logits: Tensor, outcomes: Tensor, wanted: Tensor, blocks: Examples, weights: LossWeights) -> Tensor:
    """The weighted sum of all parts, each a mean over blocks or groups.

    Args:
        logits: of rejection, [blocks, positions].
        outcomes: predicted, standardised, [blocks, 3].
        wanted: labels, standardised, [blocks, 3].
        blocks: that the predictions are for; whole groups.
        weights: of the parts.
    """
    errors = smooth_l1_loss(outcomes, wanted, reduction="none").mean(0)
    regression = errors @ errors.new_tensor([weights.cost, weights.throughput, weights.utility])
    survival = survival_loss(logits, blocks.accepted, blocks.drafted)
    ranking = ranking_loss(outcomes[:, _UTILITY], wanted[:, _UTILITY], blocks.group)
    return weights.survival * survival + regression + weights.ranking * ranking


def survival_loss(logits: Tensor, accepted: Tensor, drafted: Tensor) -> Tensor:
    """Mean of ``survival.censored_loss`` over the blocks that had drafts; 0 where none had."""
    position = torch.arange(logits.shape[1])
    survived = position < accepted[:, None]
    rejected = (position == accepted[:, None]) & (accepted < drafted)[:, None]
    loss = (survived * softplus(logits) + rejected * softplus(-logits)).sum()
    return loss / (drafted > 0).sum().clamp(min=1)


def ranking_loss(scores: Tensor, utilities: Tensor, group: Tensor) -> Tensor:
    """Cross-entropy of the softmax of scores within each group against its block of the highest utility.

    Mean over groups of more than one depth; 0 where there is none.

    Args:
        scores: predicted, [blocks].
        utilities: labels, [blocks].
        group: from 0, [blocks].
    """
    groups = int(group.max()) + 1
    sizes = torch.bincount(group, minlength=groups)
    normal = _log_sum_exp(scores, group, groups)
    best = scores.new_full((groups,), -torch.inf).scatter_reduce(0, group, utilities, "amax")
    is_best = utilities >= best[group]
    losses = torch.where(is_best, normal[group] - scores, 0.0)
    shares = torch.bincount(group, is_best.float(), groups)[group]
    counts = sizes[group] > 1
    return (losses / shares * counts).sum() / (sizes > 1).sum().clamp(min=1)


def _log_sum_exp(scores: Tensor, group: Tensor, groups: int) -> Tensor:
    largest = scores.detach().new_full((groups,), -torch.inf).scatter_reduce(0, group, scores.detach(), "amax")
    sums = scores.new_zeros(groups).index_add(0, group, torch.exp(scores - largest[group]))
    return largest + torch.log(sums)
