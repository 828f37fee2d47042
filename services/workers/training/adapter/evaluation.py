"""What the first stage would have drafted at each position of the held-out answers, and how sure it would have been."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import repeat

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from services.common.training.training_data import AnsweredPrompt, in_batches, load_batch
from services.workers.context_lookup import LONGEST_MATCH, Found, look_up
from services.workers.draft_adapter.torch_adapter import DraftAdapter, DraftHead
from services.workers.training.draft_vocabulary import inverse


@dataclass(frozen=True, slots=True, eq=False)
class Drafts:
    """One row for each position of the held-out answers.

    Attributes:
        agrees: whether the draft is the target's own next token.
        draftable: whether that token is in the draft vocabulary at all.
        confidence: the draft's probability over the draft vocabulary, or the agreement of lookups like it.
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
    """The adapter's own drafts at every position of the answers, each after the target's own tokens, as in serving.

    Raises:
        ValueError: there are no sequences.
    """
    if not sequences:
        raise ValueError("no held-out answers have states; generate more answers first")
    t2d = inverse(d2t, int(d2t.max()) + 1)
    tokens, confidences, known = [], [], []
    for group in in_batches(sequences, batch_tokens):
        batch = load_batch(group)
        with torch.inference_mode():
            probabilities = head(adapter(batch.states, batch.lengths)[batch.answers]).softmax(-1)
        confidence, drafts = probabilities.max(-1)
        tokens.append(d2t[drafts].numpy())
        confidences.append(confidence.numpy())
        known.append(((batch.labels < len(t2d)) & (t2d[batch.labels.clamp_max(len(t2d) - 1)] >= 0)).numpy())
    lengths = [len(sequence.answer.answer) for sequence in sequences]
    return Drafts(
        agrees=np.concatenate(tokens) == np.concatenate([sequence.answer.answer for sequence in sequences]),
        draftable=np.concatenate(known),
        confidence=np.concatenate(confidences),
        position=np.concatenate([np.arange(length, dtype=np.int32) for length in lengths]),
        workload=np.repeat([sequence.prompt.workload for sequence in sequences], lengths),
        greedy=np.repeat([sequence.prompt.temperature == 0 for sequence in sequences], lengths),
    )


def measure_lookups(sequences: Sequence[AnsweredPrompt]) -> tuple[float, ...]:
    """How often a lookup is the target's own next token, by match length from 1 on, in greedy answers."""
    tried, agreed = np.zeros(LONGEST_MATCH + 1), np.zeros(LONGEST_MATCH + 1)
    for sequence in sequences:
        for found, token in zip(_lookups(sequence), sequence.answer.answer, strict=True):
            if found is not None:
                tried[found.match_length] += 1
                agreed[found.match_length] += found.token_id == token
    return tuple((agreed / np.maximum(tried, 1))[1:].tolist())


def with_lookups(drafts: Drafts, sequences: Sequence[AnsweredPrompt], agreement: Sequence[float]) -> Drafts:
    """``drafts`` of ``sequences`` as the first stage serves them: with lookups where these are likelier to be right.

    Args:
        agreement: ``lookup_agreement`` of the adapter's configuration.
    """
    agrees, confidence = drafts.agrees.copy(), drafts.confidence.copy()
    position = 0
    for sequence in sequences:
        for found, token in zip(_lookups(sequence), sequence.answer.answer, strict=True):
            if found is not None and (right := found.agreement(agreement)) > confidence[position]:
                agrees[position], confidence[position] = found.token_id == token, right
            position += 1
    return replace(drafts, agrees=agrees, confidence=confidence)


def _lookups(sequence: AnsweredPrompt) -> Iterator[Found | None]:
    """Before each token of the answer; in one that was sampled nothing is looked up."""
    if sequence.prompt.temperature > 0:
        yield from repeat(None, len(sequence.answer.answer))
        return
    text = np.concatenate([sequence.answer.prompt, sequence.answer.answer])
    for end in range(len(sequence.answer.prompt), len(text)):
        yield look_up(text[:end])
