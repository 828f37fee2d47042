"""Losses against the target's own distribution, in chunks: no logits of all positions are ever kept.

A drafter's guess is a tensor of outputs, one row a position; its logits are made of a chunk of rows, compared with the
target's for the same chunk, and gone again. The gradient of the rows is collected and passed on to the drafter once.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from services.common.training.training_data import Batch

Logits = Callable[[Tensor], Tensor]
"""[rows, hidden] → [rows, vocabulary]."""

CHUNK = 512
"""Positions whose logits are there at once."""


@dataclass(frozen=True, slots=True, eq=False)
class Guess:
    """What a drafter puts out for every position.

    Attributes:
        outputs: [P, hidden]; row r foretells what the target says at position r + ``ahead`` of the same sequence.
        ahead: how many tokens further than the target's own state the guess looks.
        weight: of its loss beside the other guesses'.
    """

    outputs: Tensor
    ahead: int = 0
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Lesson:
    """What one batch came to.

    Attributes:
        loss: the weighted mean over guesses and positions, in nats.
        agreement: share of the first guess's rows whose likeliest token is the target's.
    """

    loss: float
    agreement: float


def distil(
    guesses: Sequence[Guess], logits: Logits, target: Logits, batch: Batch, prompt_weight: float, soft_share: float
) -> Lesson:
    """Computes the loss and leaves its gradients in whatever made the guesses and the logits.

    Args:
        guesses: at least one.
        logits: of the drafter, from rows of outputs.
        target: its logits over the same vocabulary, from the last residual streams.
        batch: that the guesses are about.
        prompt_weight: see ``position_weights``.
        soft_share: see ``draft_losses``.
    """
    weights = position_weights(batch, prompt_weight)
    within = positions_within(batch)
    taught = weights.nonzero()[:, 0]
    whole = sum(guess.weight for guess in guesses)
    norms = [weights[taught[within[taught] >= guess.ahead]].sum().clamp_min(1e-9) for guess in guesses]
    gradients = [torch.zeros_like(guess.outputs) for guess in guesses]
    total, agreed, compared = 0.0, 0, 0
    for chunk in taught.split(CHUNK):
        with torch.no_grad():
            wanted = target(batch.last[chunk])
        for index, guess in enumerate(guesses):
            known = within[chunk] >= guess.ahead
            rows = chunk[known] - guess.ahead
            part = guess.outputs[rows].detach().requires_grad_()
            made = logits(part)
            losses = draft_losses(made, wanted[known], soft_share)
            loss = guess.weight / whole * (losses * weights[chunk[known]]).sum() / norms[index]
            loss.backward()
            gradients[index][rows] = part.grad
            total += loss.item()
            if index == 0:
                agreed += int((made.argmax(-1) == wanted[known].argmax(-1)).sum())
                compared += len(rows)
    torch.autograd.backward([guess.outputs for guess in guesses], gradients)
    return Lesson(total, agreed / max(1, compared))


def draft_losses(logits: Tensor, target: Tensor, soft_share: float) -> Tensor:
    """The loss of each position: cross-entropy with the target's likeliest token and with its distribution, mixed.

    Args:
        logits: [N, vocabulary], of the drafts.
        target: [N, vocabulary], of the target.
        soft_share: weight of the cross-entropy with the distribution; the rest is on the likeliest token.
    """
    losses = torch.zeros(len(logits))
    if soft_share < 1:
        losses = losses + (1 - soft_share) * cross_entropy(logits, target.argmax(-1), reduction="none")
    if soft_share > 0:
        losses = losses + soft_share * cross_entropy(logits, target.softmax(-1), reduction="none")
    return losses


def position_weights(batch: Batch, prompt_weight: float) -> Tensor:
    """[P]: 1 for positions that predict an answer's token, ``prompt_weight`` for others, 0 for a sequence's first."""
    weights = torch.full((len(batch.starts),), prompt_weight)
    weights[batch.answers] = 1.0
    weights[batch.starts] = 0.0
    return weights


def positions_within(batch: Batch) -> Tensor:
    """[P]: how many positions of its own sequence lie before each."""
    return torch.cat([torch.arange(length) for length in batch.lengths])
