"""One adapter that learns: it foretells what the target says at the very position whose exit state it reads.

The loss mixes two cross-entropies over the draft vocabulary: with the target's likeliest token, and with the target's
distribution (what a draft must match when the target samples, and a finer signal at temperature 0). The target's logits
are computed from its last residual streams, so prompts teach as well as answers do.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from services.common.training.distillation import Guess, Lesson, distil
from services.common.training.step_trainer import TrainOptions
from services.common.training.training_data import AnsweredPrompt, Batch
from services.workers.draft_adapter.config import DraftAdapterConfig
from services.workers.draft_adapter.torch_adapter import DraftAdapter, DraftHead
from services.workers.training.adapter.starting_point import fit_start


class AdapterStudent:
    """A ``Student``."""

    def __init__(self, config: DraftAdapterConfig, head: DraftHead, d2t: Tensor, options: TrainOptions) -> None:
        torch.manual_seed(options.seed)
        self.module = DraftAdapter(config)
        self.identity = f"{config.model_dump_json()} {d2t.tolist()}"
        self._head = head
        self._options = options

    def begin(self, sequences: Sequence[AnsweredPrompt]) -> None:
        """Starts from the ridge regression."""
        fit_start(self.module, sequences)

    def learn(self, batch: Batch) -> Lesson:
        """One forward and backward pass."""
        options, guess = self._options, Guess(self.module(batch.states, batch.lengths))
        return distil([guess], self._head, self._head, batch, options.prompt_weight, options.soft_share)
