"""From which chance on the model may say "ends within", so that it is right as often as is wanted."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

NEVER = 1.0
LEAST_POSITIVES = 20
"""A cut-off that fewer tokens reach on validation is chance."""


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Of one threshold's statements on one data set."""

    tokens: int
    """Whose truth is known."""
    base_rate: float
    """Of them end within the threshold."""
    precision: float
    """Of the statements are right; 1 where there are none."""
    recall: float
    """Of those that end within the threshold are said to."""


def choose_cut_off(chances: NDArray[np.float32], labels: NDArray[np.bool_], precision: float) -> float:
    """The lowest cut-off, hence the one of best recall, at which ``precision`` of the statements are right.

    Args:
        chances: [tokens], of those whose truth is known.
        labels: [tokens].
        precision: wanted.

    Returns:
        ``NEVER`` where no cut-off is right as often.
    """
    order = np.argsort(-chances, kind="stable")
    right = np.cumsum(labels[order])
    said = np.arange(1, len(order) + 1)
    # Tokens of equal chance are said together.
    is_last_of_equals = np.append(np.diff(chances[order]) != 0, True)
    good = np.flatnonzero((right >= precision * said) & is_last_of_equals & (said >= LEAST_POSITIVES))
    return float(chances[order[good[-1]]]) if len(good) else NEVER


def measure(chances: NDArray[np.float32], labels: NDArray[np.bool_], cut_off: float) -> Accuracy:
    """Of what a cut-off says. ``chances`` and ``labels``: [tokens], of those whose truth is known."""
    said = (chances >= cut_off) & (cut_off < NEVER)
    right = int((said & labels).sum())
    return Accuracy(
        tokens=len(labels),
        base_rate=float(labels.mean()) if len(labels) else 0.0,
        precision=right / int(said.sum()) if said.any() else 1.0,
        recall=right / int(labels.sum()) if labels.any() else 0.0,
    )
