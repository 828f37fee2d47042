"""Short codes of tokens, by which a head's attention finds the same token again, and where they fit into its heads.

Rotary embedding turns the pairs of a head's numbers, each at its own speed, by the distance of two tokens. Only pairs
that hardly turn within ``SPAN`` tokens can compare tokens that far apart; those that turn fastest tell distance 0 from
all others.
"""

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

SPAN: Final = 512
"""Tokens over which a code still matches."""
FAST: Final = 0.15
"""Radians a token from which a pair tells neighbours apart."""
_DIRECTIONS: Final = 256
"""Of the embedding that codes are made of, those with the largest spread."""


def token_codes(embedding: Tensor, tokens: Tensor, width: int, count: int) -> Tensor:
    """Random codes in which different tokens are nearly orthogonal.

    Args:
        embedding: [vocabulary, hidden].
        tokens: a text's ids; the spread is taken over them.
        width: numbers of a code.
        count: how many codes a token gets.

    Returns:
        [count, vocabulary, width], each code of length 1.
    """
    rows = embedding.float()
    used = rows[tokens]
    mean = used.mean(0)
    spread, directions = torch.linalg.eigh((used - mean).T @ (used - mean) / len(used))
    kept = min(_DIRECTIONS, len(spread))
    white = (rows - mean) @ (directions[:, -kept:] / spread[-kept:].clamp_min(1e-9).sqrt())
    codes = torch.stack([white @ torch.randn(kept, width) for _ in range(count)])
    return codes / codes.norm(dim=-1, keepdim=True).clamp_min(1e-9)


def slow_pairs(inv_freq: Tensor) -> Tensor:
    """Numbers of a head, in both halves, whose pairs hardly turn within ``SPAN`` tokens."""
    slow = (inv_freq * SPAN < 1.0).nonzero()[:, 0]
    return torch.cat([slow, slow + len(inv_freq)])


def fast_pairs(inv_freq: Tensor) -> Tensor:
    """Numbers of a head, in the first half alone, whose pairs turn fastest."""
    return (inv_freq > FAST).nonzero()[:, 0]


def previous(values: Tensor, starts: Tensor) -> Tensor:
    """[P, ...] of packed sequences moved on by one position; 0 at the ``starts`` [P] bool of sequences."""
    moved = values.roll(1, 0)
    moved[starts] = 0
    return moved


def causal_shares(query: Tensor, key: Tensor, lengths: Sequence[int]) -> list[Tensor]:
    """Attention of packed sequences, one [heads, L, L] each.

    Args:
        query: [heads, P, head_dim].
        key: [heads, P, head_dim].
        lengths: of the sequences; sum P.
    """
    shares = []
    for rows_query, rows_key in zip(query.split(list(lengths), 1), key.split(list(lengths), 1), strict=True):
        length = rows_query.shape[1]
        scores = rows_query @ rows_key.transpose(1, 2) / query.shape[2] ** 0.5
        hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
        shares.append(scores.masked_fill(hidden, -torch.inf).softmax(-1))
    return shares
