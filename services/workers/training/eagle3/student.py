"""One EAGLE-3 head that learns by being unrolled, and what it would draft."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import embedding
from transformers import LlamaConfig

from services.common.target_weights import TargetWeights
from services.common.training.distillation import CHUNK, Guess, Lesson, distil
from services.common.training.step_trainer import TrainOptions
from services.common.training.training_data import AnsweredPrompt, Batch
from services.workers.draft_adapter.torch_adapter import DraftHead
from services.workers.training.eagle3.head import Eagle3Head
from services.workers.training.eagle3.starting_point import fit_start


@dataclass(frozen=True, slots=True, kw_only=True)
class Eagle3TrainOptions(TrainOptions):
    """How to train a head."""

    unroll: int = 4
    """Steps from each position on, the first included."""
    step_decay: float = 0.8
    """Weight of a step's loss beside the one before it."""


class Eagle3Student:
    """A ``Student``."""

    def __init__(self, config: LlamaConfig, target: TargetWeights, d2t: Tensor, options: Eagle3TrainOptions) -> None:
        """``d2t``: [draft vocabulary] the target's token id of each draft index."""
        torch.manual_seed(options.seed)
        self.module = Eagle3Head(config)
        self.identity = f"{config.to_json_string()} {d2t.tolist()}"
        # In the file's own type: the whole embedding is large, and only a few rows at a time are read.
        self._embedding = target.embedding()
        self._target_head = DraftHead(target.final_norm().float(), target.head_rows(d2t).float(), config.rms_norm_eps)
        self._d2t = d2t
        self._options = options
        with torch.no_grad():
            self.module.norm.weight.copy_(self._target_head.norm.weight)
            self.module.lm_head.weight.copy_(self._target_head.rows)

    def begin(self, sequences: Sequence[AnsweredPrompt]) -> None:
        """Starts from the ridge regression."""
        fit_start(self.module, sequences, self._embedding)

    def learn(self, batch: Batch) -> Lesson:
        """One forward and backward pass through all steps."""
        options = self._options
        outputs = self._unroll(batch, options.unroll)
        # Step t at row i foretells token i + 2 + t, which the target foretells at position i + 1 + t.
        guesses = [Guess(each, ahead=1 + step, weight=options.step_decay**step) for step, each in enumerate(outputs)]
        return distil(guesses, self.module.logits, self._target_head, batch, options.prompt_weight, options.soft_share)

    def draft(self, batch: Batch, depth: int) -> Tensor:
        """The most likely tokens, a ``Draft`` of ``measure_chains``."""
        drafts = []
        for each in self._unroll(batch, depth):
            likeliest = torch.cat([self.module.logits(part).argmax(-1) for part in each.split(CHUNK)])
            # Row i was given token i + 1 already.
            drafts.append(self._d2t[likeliest].roll(1, 0))
        return torch.stack(drafts, dim=1)

    def _unroll(self, batch: Batch, steps: int) -> list[Tensor]:
        embeddings = embedding(batch.tokens, self._embedding).float()
        return self.module.unroll(batch.states, embeddings, batch.lengths, steps)
