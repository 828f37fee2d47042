"""One cut model that learns the target's distribution, and what it would draft."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from services.common.target_weights import TargetWeights
from services.common.training.distillation import CHUNK, Guess, Lesson, distil
from services.common.training.step_trainer import TrainOptions
from services.common.training.training_data import AnsweredPrompt, Batch, read_tokens
from services.workers.draft_adapter.torch_adapter import DraftHead
from services.workers.training.draft_model.bridges import choose_sequences, fit_bridges, widen
from services.workers.training.draft_model.cut import cut_model

PADDED_SHARE = 0.2
"""Of the tokens that are computed at once may be padding."""


class DraftModelStudent:
    """A ``Student``."""

    def __init__(self, model: Path, layers: Sequence[int], options: TrainOptions) -> None:
        """``layers``: indexes of the target's layers that the draft starts with."""
        torch.manual_seed(options.seed)
        self.module = cut_model(model, layers)
        widen(self.module)
        self.identity = f"{self.module.config.to_json_string()} {layers}"
        self._model, self._layers, self._options = model, layers, options
        # The draft's LM head is the target's; its final norm learns, so the target's is read once more.
        self._target_head = DraftHead(
            TargetWeights(str(model)).final_norm().float(),
            self.module.get_output_embeddings().weight.detach(),
            self.module.config.rms_norm_eps,
        )

    def begin(self, sequences: Sequence[AnsweredPrompt]) -> None:
        """Starts from the target's layers with bridges between them."""
        tokens = choose_sequences([read_tokens(each.answer) for each in sequences])
        fit_bridges(self.module, self._model, self._layers, tokens)

    def learn(self, batch: Batch) -> Lesson:
        """One forward and backward pass."""
        options, guess = self._options, Guess(self.outputs(batch.tokens, batch.lengths))
        return distil([guess], self._logits, self._target_head, batch, options.prompt_weight, options.soft_share)

    def draft(self, batch: Batch, depth: int) -> Tensor:
        """The most likely tokens, a ``Draft`` of ``measure_chains``."""
        outputs = self.outputs(batch.tokens, batch.lengths)
        likeliest = torch.cat([self._logits(part).argmax(-1) for part in outputs.split(CHUNK)])
        return torch.stack([likeliest.roll(-index, 0) for index in range(depth)], dim=1)

    def outputs(self, tokens: Tensor, lengths: Sequence[int]) -> Tensor:
        """The LM head's inputs at every position: token ids [P] of packed sequences → [P, hidden]."""
        sequences = tokens.split(list(lengths))
        decoder = self.module.get_decoder()
        found: dict[int, Tensor] = {}
        for group in _alike(lengths):
            # Padded on the right and causal: no sequence sees its padding, so no mask is needed.
            padded = pad_sequence([sequences[index] for index in group], batch_first=True)
            hidden = decoder(input_ids=padded, use_cache=False).last_hidden_state
            found.update({index: hidden[row, : lengths[index]] for row, index in enumerate(group)})
        return torch.cat([found[index] for index in range(len(lengths))])

    def _logits(self, outputs: Tensor) -> Tensor:
        made: Tensor = self.module.get_output_embeddings()(outputs)
        return made


def _alike(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Indexes, like lengths together, so that little of each group is padding."""
    group: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        padded = (len(group) + 1) * lengths[group[0] if group else index]
        tokens = sum(lengths[each] for each in (*group, index))
        if group and padded - tokens > PADDED_SHARE * padded:
            yield group
            group = []
        group.append(index)
    if group:
        yield group
