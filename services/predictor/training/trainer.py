"""Trains one perceptron: AdamW, cosine decay, the epoch that does best on validation, then calibrated on it.

All thresholds share the layers; the loss is the mean cross-entropy over what is known of each token. What is trained is
decided by the data, the options and the seed.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from services.common.training.checkpoint import Checkpoint
from services.common.training.schedule import half_cosine
from services.predictor.model import Floats


@dataclass(frozen=True, slots=True)
class TrainOptions:
    """How to train; together with the data they decide the result."""

    epochs: int = 5
    batch: int = 1024
    """Tokens in a step."""
    learning_rate: float = 3e-4
    weight_decay: float = 10.0
    """Strong, for what is scarce is not tokens but ends of answers: a few hundred of them are learnt by heart soon."""
    dropout: float = 0.5
    width: int = 512
    seed: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Labelled:
    """Inputs [tokens, inputs]; labels and whether they are known, both [tokens, thresholds]."""

    inputs: Floats
    labels: NDArray[np.bool_]
    known: NDArray[np.bool_]


class Trainer:
    """One perceptron in training; ``layers`` is the best so far."""

    def __init__(self, inputs: int, outputs: int, options: TrainOptions, checkpoint: Path | None) -> None:
        """``checkpoint``: file to go on from after an interruption; None: none."""
        torch.manual_seed(options.seed)
        width, dropout = options.width, options.dropout
        self.layers = nn.Sequential(
            nn.Linear(inputs, width), nn.ReLU(), nn.Dropout(dropout),
            nn.Linear(width, width), nn.ReLU(), nn.Dropout(dropout),
            nn.Linear(width, outputs),
        )  # fmt: skip
        self._options = options
        self._checkpoint = Checkpoint(checkpoint)
        self._optimizer = torch.optim.AdamW(
            self.layers.parameters(), options.learning_rate, weight_decay=options.weight_decay
        )

    def run(self, train: Labelled, validation: Labelled, on_epoch: Callable[[int, float], None]) -> None:
        """Trains, keeps the epoch with the lowest validation loss, and calibrates it.

        Args:
            train: to learn from.
            validation: to choose the epoch and to calibrate by.
            on_epoch: called with the number of epochs done and the validation loss.
        """
        identity = self._identity(train)
        done, best, best_loss = self._resume(identity)
        for epoch in range(done, self._options.epochs):
            self._epoch(train, epoch)
            loss = self._loss(validation)
            if loss < best_loss:
                best_loss, best = loss, {name: each.clone() for name, each in self.layers.state_dict().items()}
            on_epoch(epoch + 1, loss)
            self._save(identity, epoch + 1, best, best_loss)
        self.layers.load_state_dict(best)
        self.layers.eval()
        self._calibrate(validation)

    def tensors(self) -> dict[str, Floats]:
        """Weights and biases by layer, as ``RemainingLengthModel`` names them."""
        linear = [layer for layer in self.layers if isinstance(layer, nn.Linear)]
        return {
            f"{index}.{name}": getattr(layer, name).detach().numpy()
            for index, layer in enumerate(linear)
            for name in ("weight", "bias")
        }

    def logits(self, inputs: Floats) -> Tensor:
        """[tokens, thresholds], without dropout."""
        self.layers.eval()
        with torch.inference_mode():
            return torch.cat([self.layers(each) for each in torch.from_numpy(inputs).split(8192)])

    def _epoch(self, train: Labelled, epoch: int) -> None:
        options = self._options
        order = np.random.default_rng((options.seed, epoch)).permutation(len(train.inputs))
        steps = range(0, len(order), options.batch)
        self.layers.train()
        torch.manual_seed(options.seed + epoch)
        for index, start in enumerate(steps):
            progress = (epoch + index / len(steps)) / options.epochs
            for group in self._optimizer.param_groups:
                group["lr"] = options.learning_rate * half_cosine(progress)
            rows = np.sort(order[start : start + options.batch])
            loss = _loss(self.layers(torch.from_numpy(train.inputs[rows])), train, rows)
            self._optimizer.zero_grad(set_to_none=True)
            loss.backward()
            self._optimizer.step()

    def _loss(self, data: Labelled) -> float:
        return float(_loss(self.logits(data.inputs), data, np.arange(len(data.inputs))))

    def _calibrate(self, data: Labelled) -> None:
        """Platt's scaling of each threshold's logit, folded into the last layer."""
        logits = self.logits(data.inputs).clone()
        scale, shift = torch.ones(logits.shape[1], requires_grad=True), torch.zeros(logits.shape[1], requires_grad=True)
        optimizer = torch.optim.LBFGS([scale, shift], max_iter=50, line_search_fn="strong_wolfe")
        rows = np.arange(len(data.inputs))

        def closure() -> float:
            optimizer.zero_grad()
            loss = _loss(logits * scale + shift, data, rows)
            loss.backward()
            return float(loss.detach())

        optimizer.step(closure)
        last = self.layers[-1]
        with torch.no_grad():
            last.weight.mul_(scale[:, None])
            last.bias.mul_(scale).add_(shift)

    def _identity(self, train: Labelled) -> str:
        """Of this training: a checkpoint of another one must not be gone on with."""
        digest = hashlib.sha256(f"{self._options} {train.inputs.shape}".encode())
        digest.update(np.packbits(train.labels).tobytes())
        return digest.hexdigest()

    def _save(self, identity: str, epochs: int, best: dict[str, Tensor], best_loss: float) -> None:
        self._checkpoint.save(
            identity,
            epochs=epochs,
            best=best,
            best_loss=best_loss,
            layers=self.layers.state_dict(),
            optimizer=self._optimizer.state_dict(),
        )

    def _resume(self, identity: str) -> tuple[int, dict[str, Tensor], float]:
        """Epochs done, the best of them and its loss; none without a checkpoint of this very training."""
        if (state := self._checkpoint.load(identity)) is None:
            return 0, self.layers.state_dict(), float("inf")
        self.layers.load_state_dict(state["layers"])
        self._optimizer.load_state_dict(state["optimizer"])
        return int(state["epochs"]), state["best"], float(state["best_loss"])


def _loss(logits: Tensor, data: Labelled, rows: NDArray[np.int64]) -> Tensor:
    known = torch.from_numpy(data.known[rows]).float()
    labels = torch.from_numpy(data.labels[rows]).float()
    losses = binary_cross_entropy_with_logits(logits, labels, reduction="none")
    return (losses * known).sum() / known.sum()
