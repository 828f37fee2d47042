"""Accepted drafts as censored survival (papers/apex section 4.3).

    h_j = P(rejected at j | accepted up to j - 1)        hazard, j = 1 .. n
    S_j = (1 - h_1) ... (1 - h_j)                        chance that the first j drafts are accepted
    E[accepted | k] = S_1 + ... + S_k

A block that accepted a of k < n drafts shows a survivals and a rejection behind them; one that accepted all k shows k
survivals and nothing of position k + 1 (it is censored).
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]
Counts = NDArray[np.integer[Any]]


def survival(hazards: Floats) -> Floats:
    """S_j. ``hazards``: [..., n], within 0 and 1; returns [..., n], never rising along the last axis."""
    return np.cumprod(1.0 - hazards, axis=-1)


def expected_accepted(hazards: Floats) -> Floats:
    """E[accepted | k] for k = 0 .. n drafts. ``hazards``: [..., n]; returns [..., n + 1] tokens, concave in k."""
    expected = np.zeros((*hazards.shape[:-1], hazards.shape[-1] + 1), hazards.dtype)
    np.cumsum(survival(hazards), axis=-1, out=expected[..., 1:])
    return expected


def hazards_of(logits: Floats) -> Floats:
    """Of log-odds of rejection, any shape; safe for any finite number."""
    # tanh saturates instead of overflowing.
    hazards: Floats = 0.5 * (1.0 + np.tanh(0.5 * logits))
    return hazards


def outcomes(accepted: Counts, drafted: Counts, positions: int) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """What blocks show of each position.

    Args:
        accepted: drafts accepted, [blocks].
        drafted: drafts verified, [blocks].
        positions: n.

    Returns:
        Whether the draft was accepted, and whether it was the rejected one; both [blocks, n]. Positions for which
        neither holds were not reached.

    Raises:
        ValueError: a block accepted more than it drafted, or drafted more than n.
    """
    if np.any(accepted > drafted) or np.any(drafted > positions) or np.any(accepted < 0):
        raise ValueError(f"0 <= accepted <= drafted <= {positions} does not hold for every block")
    position = np.arange(positions)
    survived = position < accepted[:, None]
    rejected = (position == accepted[:, None]) & (accepted < drafted)[:, None]
    return survived, rejected


def censored_loss(logits: Floats, accepted: Counts, drafted: Counts) -> Floats:
    """Negative log-likelihood of each block in nats; 0 for blocks without drafts.

    a < k: -sum_{j<=a} log(1 - h_j) - log h_{a+1};  a = k: -sum_{j<=k} log(1 - h_j).

    Args:
        logits: log-odds of rejection by position, [blocks, n].
        accepted: [blocks].
        drafted: [blocks].

    Raises:
        ValueError: as ``outcomes``.
    """
    survived, rejected = outcomes(accepted, drafted, logits.shape[-1])
    # -log(1 - sigmoid(z)) = log(1 + e^z) and -log sigmoid(z) = log(1 + e^-z), neither of which can be log 0.
    loss: Floats = (survived * np.logaddexp(0.0, logits) + rejected * np.logaddexp(0.0, -logits)).sum(axis=-1)
    return loss
