"""The loop that all drafters are trained with: AdamW, warm-up and half a cosine, resumable at any checkpoint.

What is trained, and how it learns from a batch, is the student's affair. Everything is fixed by seed, data and options.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn

from services.common.training.checkpoint import Checkpoint
from services.common.training.distillation import Lesson
from services.common.training.schedule import learning_rate_share
from services.common.training.training_data import AnsweredPrompt, Batch, TrainingData, load_batch


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainOptions:
    """How to train; together with the data they decide the result."""

    epochs: int = 3
    batch_tokens: int = 4096
    """Positions in a step, prompts included."""
    learning_rate: float = 1e-3
    weight_decay: float = 0.01
    warmup_share: float = 0.03
    """Of all steps."""
    final_learning_rate_share: float = 0.02
    """Of the peak, at the last step."""
    gradient_clip: float = 1.0
    soft_share: float = 0.5
    """Weight of the cross-entropy with the target's distribution; the rest is on its likeliest token."""
    prompt_weight: float = 0.5
    """Of a prompt's position, beside 1 of an answer's."""
    seed: int = 0
    checkpoint_steps: int = 100


@dataclass(frozen=True, slots=True)
class TrainProgress:
    """After one step."""

    step: int
    """How many steps are done."""
    loss: float
    agreement: float
    """With the target's likeliest token, in this batch."""


class Student(Protocol):
    """Something to train."""

    @property
    def module(self) -> nn.Module:
        """Its weights; those that need no gradient stay as they are and out of checkpoints."""

    @property
    def identity(self) -> str:
        """All that decides its result beside options and data, as text."""

    def begin(self, sequences: Sequence[AnsweredPrompt]) -> None:
        """Called before the first step of a new training, with all that it will learn from."""

    def learn(self, batch: Batch) -> Lesson:
        """Leaves the gradients of the batch's loss in the weights."""


class StepTrainer:
    """One student in training."""

    def __init__(self, student: Student, options: TrainOptions, checkpoint: Path) -> None:
        self._student = student
        self._options = options
        self._checkpoint = Checkpoint(checkpoint)
        self._weights = [each for each in student.module.parameters() if each.requires_grad]
        self._optimizer = torch.optim.AdamW(
            self._weights, options.learning_rate, betas=(0.9, 0.95), weight_decay=options.weight_decay
        )

    def run(self, batches: Sequence[Sequence[AnsweredPrompt]], on_step: Callable[[TrainProgress], None]) -> None:
        """Trains on ``batches``, one step each, from the last checkpoint if there is one of this very training."""
        identity = self._identity(batches)
        if not (done := self._resume(identity)):
            self._student.begin([sequence for batch in batches for sequence in batch])
        for step in range(done, len(batches)):
            self._set_learning_rate(step, len(batches))
            lesson = self._step(load_batch(batches[step]))
            on_step(TrainProgress(step + 1, lesson.loss, lesson.agreement))
            if (step + 1) % self._options.checkpoint_steps == 0 or step + 1 == len(batches):
                self._save(identity, step + 1)

    def _identity(self, batches: Sequence[Sequence[AnsweredPrompt]]) -> str:
        """Of this training: a checkpoint of another one must not be gone on with."""
        digest = hashlib.sha256(f"{self._student.identity} {self._options}".encode())
        for batch in batches:
            digest.update("".join(sequence.prompt.id for sequence in batch).encode())
        return digest.hexdigest()

    def _step(self, batch: Batch) -> Lesson:
        self._optimizer.zero_grad(set_to_none=True)
        lesson = self._student.learn(batch)
        torch.nn.utils.clip_grad_norm_(self._weights, self._options.gradient_clip)
        self._optimizer.step()
        return lesson

    def _set_learning_rate(self, step: int, steps: int) -> None:
        options = self._options
        share = learning_rate_share(step, steps, options.warmup_share, options.final_learning_rate_share)
        for group in self._optimizer.param_groups:
            group["lr"] = options.learning_rate * share

    def _save(self, identity: str, step: int) -> None:
        weights = _learnt(self._student.module)
        self._checkpoint.save(identity, step=step, weights=weights, optimizer=self._optimizer.state_dict())

    def _resume(self, identity: str) -> int:
        """The step to go on with: 0 without a checkpoint of this very training."""
        if (state := self._checkpoint.load(identity)) is None:
            return 0
        self._student.module.load_state_dict(state["weights"], strict=False)
        self._optimizer.load_state_dict(state["optimizer"])
        return int(state["step"])


def plan(data: TrainingData, options: TrainOptions) -> list[list[AnsweredPrompt]]:
    """The batches of all steps: every epoch shuffled anew.

    Raises:
        ValueError: there is nothing to train on.
    """
    batches = [
        batch for epoch in range(options.epochs) for batch in data.epoch(options.batch_tokens, options.seed + epoch)
    ]
    if not batches:
        raise ValueError("no answers of the training part have states; generate some first")
    return batches


def _learnt(module: nn.Module) -> dict[str, Tensor]:
    """The state without what is frozen."""
    frozen = {name for name, each in module.named_parameters(remove_duplicate=False) if not each.requires_grad}
    return {name: each for name, each in module.state_dict().items() if name not in frozen}
