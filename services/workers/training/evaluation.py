"""Runs an adapter over the held-out answers: what it drafts at each position, and how sure it is."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from services.workers.draft_adapter.torch_adapter import DraftAdapter, DraftHead
from services.workers.training.draft_vocabulary import inverse
from services.workers.training.training_data import AnsweredPrompt, in_batches, load_batch


@dataclass(frozen=True, slots=True, eq=False)
class Drafts:
    """One row for each position of the held-out answers.

    Attributes:
        agrees: whether the draft is the target's own next token.
        draftable: whether that token is in the draft vocabulary at all.
        confidence: the draft's probability over the draft vocabulary.
        position: in the answer, from 0.
        workload: of the prompt.
        greedy: whether the target answered at temperature 0.
    """

    agrees: NDArray[np.bool_]
    draftable: NDArray[np.bool_]
    confidence: NDArray[np.float32]
    position: NDArray[np.int32]
    workload: NDArray[np.str_]
    greedy: NDArray[np.bool_]

    def where(self, chosen: NDArray[np.bool_]) -> "Drafts":
        """The chosen rows."""
        return Drafts(*(getattr(self, name)[chosen] for name in self.__slots__))


def evaluate(
    adapter: DraftAdapter, head: DraftHead, d2t: Tensor, sequences: Sequence[AnsweredPrompt], batch_tokens: int = 8192
) -> Drafts:
    """Drafts at every position of the answers, each after the target's own tokens, as in serving.

    Raises:
        ValueError: there are no sequences.
    """
    if not sequences:
        raise ValueError("no held-out answers have states; generate more answers first")
    t2d = inverse(d2t, int(d2t.max()) + 1)
    parts: list[tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[np.float32]]] = []
    for group in in_batches(sequences, batch_tokens):
        batch = load_batch(group)
        with torch.inference_mode():
            probabilities = head(adapter(batch.states, batch.lengths)[batch.labelled]).softmax(-1)
        confidence, drafts = probabilities.max(-1)
        known = (batch.labels < len(t2d)) & (t2d[batch.labels.clamp_max(len(t2d) - 1)] >= 0)
        parts.append(((d2t[drafts] == batch.labels).numpy(), known.numpy(), confidence.numpy()))
    lengths = [len(sequence.answer.answer) for sequence in sequences]
    return Drafts(
        agrees=np.concatenate([part[0] for part in parts]),
        draftable=np.concatenate([part[1] for part in parts]),
        confidence=np.concatenate([part[2] for part in parts]),
        position=np.concatenate([np.arange(length, dtype=np.int32) for length in lengths]),
        workload=np.repeat([sequence.prompt.workload for sequence in sequences], lengths),
        greedy=np.repeat([sequence.prompt.temperature == 0 for sequence in sequences], lengths),
    )
