"""The report: precision and recall of each threshold on each data set, beside two baselines at the same precision.

Baselines: a constant hazard, which knows how long answers are and nothing of this one; and the same perceptron with
progress alone, how many tokens the answer has and which share of its limit that is.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.predictor.model import Floats
from services.predictor.training.cut_offs import Accuracy, choose_cut_off, measure
from services.predictor.training.examples import Examples

Predict = Callable[[Examples], Floats]
"""Chances, [tokens, thresholds]."""

MODEL, HAZARD, PROGRESS = "model", "constant hazard", "progress"


@dataclass(frozen=True, slots=True)
class Report:
    """By predictor (``MODEL`` and the baselines) and data set, one accuracy a threshold."""

    thresholds: tuple[int, ...]
    cut_offs: Mapping[str, tuple[float, ...]]
    """By predictor; set on validation."""
    accuracy: Mapping[str, Mapping[str, tuple[Accuracy, ...]]]
    losses: Mapping[str, Mapping[str, float]]
    """By predictor and data set, the mean cross-entropy of the chances in nats: what forecasts, which use chances and
    no cut-offs, gain by it."""

    def of_model(self) -> list[Accuracy]:
        """Every threshold on every data set."""
        return [each for accuracies in self.accuracy[MODEL].values() for each in accuracies]

    @property
    def precision_min(self) -> float:
        """Of the model, over thresholds and data sets."""
        return min(each.precision for each in self.of_model())

    @property
    def recall_mean(self) -> float:
        """Of the model, over thresholds and data sets."""
        return float(np.mean([each.recall for each in self.of_model()]))

    @property
    def recall_min(self) -> float:
        """Of the model, over thresholds and data sets."""
        return min(each.recall for each in self.of_model())

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        summary = {
            "precision_min": self.precision_min,
            "recall_mean": self.recall_mean,
            "recall_min": self.recall_min,
        }
        return {**summary, **asdict(self)}


def evaluate(
    predictors: Mapping[str, Predict],
    validation: Examples,
    sets: Mapping[str, Examples],
    thresholds: tuple[int, ...],
    precision: float,
) -> Report:
    """Sets each predictor's cut-offs on ``validation`` for ``precision`` and measures them on ``sets``."""
    cut_offs, accuracy, losses = {}, {}, {}
    for name, predict in predictors.items():
        chances = predict(validation)
        cuts = tuple(
            choose_cut_off(*each, precision) for each in _by_threshold(chances, *validation.labels(thresholds))
        )
        cut_offs[name] = cuts
        judged = {title: (predict(data), *data.labels(thresholds)) for title, data in sets.items()}
        accuracy[name] = {
            title: tuple(measure(*part, cut) for part, cut in zip(_by_threshold(*each), cuts, strict=True))
            for title, each in judged.items()
        }
        losses[name] = {title: _loss(*each) for title, each in judged.items()}
    return Report(thresholds, cut_offs, accuracy, losses)


def constant_hazard(train: Examples, thresholds: Sequence[int]) -> Predict:
    """As if every token were the last with the same chance: ended answers over tokens."""
    ended = int((~train.is_cut & (train.remaining == 1)).sum())
    hazard = ended / len(train)
    chances = 1 - (1 - hazard) ** np.array(thresholds)
    return lambda data: np.tile(chances.astype(np.float32), (len(data), 1))


def progress_inputs(data: Examples, max_answer_tokens: int) -> Floats:
    """What the baseline of that name reads: [tokens, 2]."""
    share = data.answer_tokens / max_answer_tokens
    return np.stack([np.log1p(data.answer_tokens), share], axis=1).astype(np.float32)


def _loss(chances: Floats, labels: NDArray[np.bool_], known: NDArray[np.bool_]) -> float:
    """Mean cross-entropy over what is known."""
    right = np.clip(np.where(labels, chances, 1 - chances), 1e-6, 1.0)
    return float(-np.log(right[known]).mean())


def _by_threshold(
    chances: Floats, labels: NDArray[np.bool_], known: NDArray[np.bool_]
) -> list[tuple[Floats, NDArray[np.bool_]]]:
    """Chances and labels of each threshold, of the tokens whose truth is known."""
    return [(chances[known[:, each], each], labels[known[:, each], each]) for each in range(chances.shape[1])]
