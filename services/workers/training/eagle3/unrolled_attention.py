"""Attention of one unrolled step over all steps so far, for every position at once.

When a head drafts, its first step has read the text up to position i, and each further step adds one key of its own.
Unrolled from all positions together, step t at row i sees the first step's keys of rows 0 to i and, of each later step,
the key of its own row alone: what other rows drafted belongs to other chains. So the scores are a causal square and one
more column a later step (the mask of EAGLE-3, section 3.2, without ever building the long one).
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def attend(query: Tensor, steps: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """Of one sequence with L positions.

    Args:
        query: [heads, L, head_dim], of the last step.
        steps: keys and values of every step, [key heads, L, head_dim] each; at least two.

    Returns:
        [heads, L, head_dim].
    """
    (keys, values), *later = steps
    groups, length, width = keys.shape
    query = query.view(groups, -1, length, width) / math.sqrt(width)
    hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
    scores = (query @ keys[:, None].transpose(-1, -2)).masked_fill(hidden, -torch.inf)
    own = [(query * key[:, None]).sum(-1, keepdim=True) for key, _ in later]
    shares = torch.cat([scores, *own], dim=-1).softmax(-1)
    mixed = shares[..., :length] @ values[:, None]
    for index, (_, value) in enumerate(later):
        mixed = mixed + shares[..., length + index, None] * value[:, None]
    return mixed.reshape(-1, length, width)
