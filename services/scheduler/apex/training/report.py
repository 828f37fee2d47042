"""How good a depth model is on blocks that it did not learn from, and what it is better than.

The baseline is what averages know: for each expert and position the share of drafts that were rejected there.
"""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from services.common.expert import DEPTHS
from services.scheduler.apex.arms import POSITIONS
from services.scheduler.apex.depth_net import OUTCOMES, DepthNet
from services.scheduler.apex.features import EXPERT_ROWS
from services.scheduler.apex.survival import censored_loss, expected_accepted, hazards_of, outcomes
from services.scheduler.apex.training.examples import Examples

Logits = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Calibration:
    """Of the blocks of one expert and depth."""

    expert: str
    depth: int
    blocks: int
    expected: float
    """Accepted tokens by the model, in the mean."""
    observed: float


@dataclass(frozen=True, slots=True)
class Report:
    """On the blocks it is reported on."""

    blocks: int
    survival_loss: float
    """Censored negative log-likelihood of a block with drafts, in nats."""
    baseline_survival_loss: float
    """Of constant hazards by expert and position."""
    length_error: float
    """Root mean square of expected minus observed accepted length, in tokens."""
    baseline_length_error: float
    cost_error: float
    """Median of |predicted / observed - 1| of a block's seconds."""
    throughput_error: float
    best_depth_chosen: float
    """Share of groups of several depths in which the highest predicted utility is the highest label."""
    calibration: tuple[Calibration, ...]

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def evaluate(model: DepthNet, train: Examples, judged: Examples) -> Report:
    """``train``: what it learnt from, for the baseline. ``judged``: other blocks."""
    logits, predicted = _predict(model, judged)
    constant = _constant_logits(train)[judged.experts.numpy()]
    accepted, drafted = judged.accepted.numpy(), judged.drafted.numpy()
    has_drafts = drafted > 0
    lengths, baseline_lengths = _lengths(logits, drafted), _lengths(constant, drafted)
    wanted = judged.outcomes.numpy()
    ratio = np.abs(np.expm1(predicted - wanted))
    return Report(
        blocks=len(judged),
        survival_loss=_mean(censored_loss(logits, accepted, drafted)[has_drafts]),
        baseline_survival_loss=_mean(censored_loss(constant, accepted, drafted)[has_drafts]),
        length_error=_mean((lengths - accepted)[has_drafts] ** 2) ** 0.5,
        baseline_length_error=_mean((baseline_lengths - accepted)[has_drafts] ** 2) ** 0.5,
        cost_error=float(np.median(ratio[:, OUTCOMES.index("log_cost")])),
        throughput_error=float(np.median(ratio[:, OUTCOMES.index("log_throughput")])),
        best_depth_chosen=_best_chosen(predicted[:, -1], wanted[:, -1], judged.group.numpy()),
        calibration=tuple(_calibration(judged, lengths)),
    )


def _predict(model: DepthNet, blocks: Examples) -> tuple[Logits, Logits]:
    """By the model as it will be served: log-odds of rejection, [blocks, positions], outcomes, [blocks, 3]."""
    logits = np.empty((len(blocks), POSITIONS), np.float32)
    predicted = np.empty((len(blocks), len(OUTCOMES)), np.float32)
    for expert in np.unique(blocks.experts.numpy()):
        rows = np.flatnonzero(blocks.experts.numpy() == expert)
        encoded = model.encode(blocks.features.numpy()[rows][:, None], np.array([expert]))
        logits[rows] = model.hazard_logits(encoded)[:, 0]
        by_depth = model.outcomes(encoded, slice(None))
        values = np.stack([by_depth.log_cost, by_depth.log_throughput, by_depth.utility], axis=-1)[:, 0]
        predicted[rows] = values[np.arange(len(rows)), blocks.depths.numpy()[rows]]
    return logits, predicted


def _constant_logits(train: Examples) -> Logits:
    """[experts, positions]; one rejection and one survival are assumed everywhere."""
    survived, rejected = outcomes(train.accepted.numpy(), train.drafted.numpy(), POSITIONS)
    logits = np.zeros((len(EXPERT_ROWS), POSITIONS), np.float32)
    for expert in range(len(EXPERT_ROWS)):
        rows = train.experts.numpy() == expert
        logits[expert] = np.log((rejected[rows].sum(0) + 1) / (survived[rows].sum(0) + 1))
    return logits


def _lengths(logits: Logits, drafted: NDArray[np.int64]) -> NDArray[np.float32]:
    expected = expected_accepted(hazards_of(logits))
    lengths: NDArray[np.float32] = expected[np.arange(len(drafted)), drafted]
    return lengths


def _best_chosen(scores: Logits, utilities: Logits, group: NDArray[np.int64]) -> float:
    starts = np.flatnonzero(np.diff(group, prepend=-1))
    found = [
        scores[begin:end].argmax() == utilities[begin:end].argmax()
        for begin, end in zip(starts, np.append(starts[1:], len(group)), strict=True)
        if end - begin > 1
    ]
    return float(np.mean(found)) if found else 1.0


def _calibration(blocks: Examples, lengths: NDArray[np.float32]) -> list[Calibration]:
    rows = torch.stack([blocks.experts, blocks.depths], dim=1)
    found = []
    for expert, depth in torch.unique(rows, dim=0).tolist():
        chosen = ((blocks.experts == expert) & (blocks.depths == depth)).numpy()
        if depth:
            observed = float(blocks.accepted.numpy()[chosen].mean())
            name = EXPERT_ROWS[expert].value
            found.append(Calibration(name, DEPTHS[depth], int(chosen.sum()), _mean(lengths[chosen]), observed))
    return found


def _mean(values: NDArray[np.floating[Any]]) -> float:
    return float(values.mean()) if len(values) else 0.0
