"""A few numbers for each token id, to pool prompts with: the target's embedding in its main directions."""

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def token_table(embedding: Tensor, prompts: Iterable[Sequence[int]], width: int) -> NDArray[np.float16]:
    """Principal components of the embedding, tokens weighted by how often the prompts have them.

    Args:
        embedding: the target's, [vocabulary, hidden].
        prompts: token ids.
        width: numbers for each token.

    Returns:
        [vocabulary, width], each column with the spread 1 over the prompts' tokens.
    """
    rows = embedding.float()
    # One more of each, so that tokens that no prompt has are not left to chance.
    counts = torch.ones(len(rows))
    for prompt in prompts:
        counts += torch.bincount(torch.tensor(prompt), minlength=len(rows))
    weights = (counts / counts.sum())[:, None]
    centred = rows - (weights * rows).sum(0)
    directions = torch.linalg.eigh(centred.T @ (weights * centred)).eigenvectors.flip(1)[:, :width]
    projected = centred @ directions
    spread = (weights * projected**2).sum(0).sqrt().clamp_min(1e-6)
    table: NDArray[np.float16] = (projected / spread).to(torch.float16).numpy()
    return table
