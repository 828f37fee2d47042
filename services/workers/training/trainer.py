"""Trains one adapter: AdamW, warm-up and cosine decay, everything fixed by the seed, resumable at any checkpoint.

The loss mixes two cross-entropies over the draft vocabulary: with the target's likeliest token, and with the target's
distribution (what a draft must match when the target samples, and a finer signal at temperature 0). The target's logits
are computed from its last residual streams, so prompts teach as well as answers do.
"""

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from services.workers.draft_adapter.config import DraftAdapterConfig
from services.workers.draft_adapter.torch_adapter import DraftAdapter, DraftHead
from services.workers.training.starting_point import fit_start
from services.workers.training.training_data import AnsweredPrompt, Batch, TrainingData, load_batch


@dataclass(frozen=True, slots=True)
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
    """With the target's likeliest token of the draft vocabulary, in this batch."""


class Trainer:
    """One adapter in training."""

    def __init__(
        self, config: DraftAdapterConfig, head: DraftHead, d2t: Tensor, options: TrainOptions, checkpoint: Path
    ) -> None:
        torch.manual_seed(options.seed)
        self.adapter = DraftAdapter(config)
        self._config = config
        self._head = head
        self._d2t = d2t
        self._options = options
        self._checkpoint = checkpoint
        self._optimizer = torch.optim.AdamW(
            self.adapter.parameters(), options.learning_rate, betas=(0.9, 0.95), weight_decay=options.weight_decay
        )

    def run(self, batches: Sequence[Sequence[AnsweredPrompt]], on_step: Callable[[TrainProgress], None]) -> None:
        """Trains on ``batches``, one step each, from the last checkpoint if there is one of this very training."""
        identity = self._identity(batches)
        if not (done := self._resume(identity)):
            fit_start(self.adapter, [sequence for batch in batches for sequence in batch])
        for step in range(done, len(batches)):
            self._set_learning_rate(step, len(batches))
            loss, agreement = self._step(load_batch(batches[step]))
            on_step(TrainProgress(step + 1, loss, agreement))
            if (step + 1) % self._options.checkpoint_steps == 0 or step + 1 == len(batches):
                self._save(identity, step + 1)

    def _identity(self, batches: Sequence[Sequence[AnsweredPrompt]]) -> str:
        """Of this training: a checkpoint of another one must not be gone on with."""
        digest = hashlib.sha256(f"{self._config.model_dump_json()} {self._options} {self._d2t.tolist()}".encode())
        for batch in batches:
            digest.update("".join(sequence.prompt.id for sequence in batch).encode())
        return digest.hexdigest()

    def _step(self, batch: Batch) -> tuple[float, float]:
        weights = position_weights(batch, self._options.prompt_weight)
        taught = weights > 0
        logits = self._head(self.adapter(batch.states, batch.lengths)[taught])
        with torch.no_grad():
            target = self._head(batch.last[taught])
        losses = draft_losses(logits, target, self._options.soft_share)
        loss = (losses * weights[taught]).sum() / weights.sum()
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.adapter.parameters(), self._options.gradient_clip)
        self._optimizer.step()
        agreement = (logits.argmax(-1) == target.argmax(-1)).float().mean()
        return loss.item(), agreement.item()

    def _set_learning_rate(self, step: int, steps: int) -> None:
        options = self._options
        for group in self._optimizer.param_groups:
            group["lr"] = options.learning_rate * learning_rate_share(
                step, steps, options.warmup_share, options.final_learning_rate_share
            )

    def _save(self, identity: str, step: int) -> None:
        self._checkpoint.parent.mkdir(parents=True, exist_ok=True)
        part = self._checkpoint.with_suffix(".part")
        state = {
            "identity": identity,
            "step": step,
            "adapter": self.adapter.state_dict(),
            "optimizer": self._optimizer.state_dict(),
        }
        torch.save(state, part)
        part.replace(self._checkpoint)

    def _resume(self, identity: str) -> int:
        """The step to go on with: 0 without a checkpoint of this very training."""
        if not self._checkpoint.is_file():
            return 0
        state = torch.load(self._checkpoint, weights_only=True)
        if state["identity"] != identity:
            return 0
        self.adapter.load_state_dict(state["adapter"])
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


def position_weights(batch: Batch, prompt_weight: float) -> Tensor:
    """[P]: 1 for positions that predict an answer's token, ``prompt_weight`` for others, 0 for a sequence's first."""
    weights = torch.full((len(batch.states),), prompt_weight)
    weights[batch.answers] = 1.0
    weights[batch.starts] = 0.0
    return weights


def draft_losses(logits: Tensor, target: Tensor, soft_share: float) -> Tensor:
    """The loss of each position, see the module's description.

    Args:
        logits: [N, draft vocabulary], of the drafts.
        target: [N, draft vocabulary], of the target.
    """
    hard = cross_entropy(logits, target.argmax(-1), reduction="none")
    soft = cross_entropy(logits, target.softmax(-1), reduction="none")
    return (1 - soft_share) * hard + soft_share * soft


def learning_rate_share(step: int, steps: int, warmup_share: float, final_share: float) -> float:
    """Of the peak learning rate: linear warm-up, then half a cosine down to ``final_share``."""
    warmup = max(1, round(steps * warmup_share))
    if step < warmup:
        return (step + 1) / warmup
    done = (step - warmup) / max(1, steps - warmup)
    return final_share + (1 - final_share) * 0.5 * (1 + math.cos(math.pi * done))
