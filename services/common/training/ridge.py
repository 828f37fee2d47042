"""The linear map between two residual streams that comes closest, in closed form: where training starts."""

from collections.abc import Sequence

import torch
from torch import Tensor

from services.common.training.training_data import AnsweredPrompt, load_batch

RIDGE = 0.01


def fit_streams(sequences: Sequence[AnsweredPrompt], tokens: int) -> tuple[Tensor, Tensor]:
    """States [N, layers × hidden] and last streams [N, hidden] of about the first ``tokens`` positions.

    A sequence's first token is left out: it has a stream like no other, and nobody drafts after it.
    """
    chosen, room = [], tokens
    for sequence in sequences:
        if room <= 0:
            break
        chosen.append(sequence)
        room -= len(sequence)
    batch = load_batch(chosen)
    return batch.states[~batch.starts], batch.last[~batch.starts]


def ridge(inputs: Tensor, outputs: Tensor) -> Tensor:
    """[out, in] weights of the linear map from ``inputs`` [N, in] to ``outputs`` [N, out]."""
    regularised = inputs.T @ inputs + RIDGE * len(inputs) * torch.eye(inputs.shape[1])
    return torch.linalg.solve(regularised, inputs.T @ outputs).T
