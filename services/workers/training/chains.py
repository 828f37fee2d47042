"""How far drafts reach: chains of drafts after held-out greedy answers, up to the first one that differs.

A chain's drafts are the drafter's own tokens. While all of them are the target's, they are the answer's next tokens,
and nobody looks at what comes after a wrong one; so chains are counted on drafts made after the answer's own tokens,
all positions at once, and nothing is decoded.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from services.common.training.training_data import AnsweredPrompt, Batch, in_batches, load_batch

Draft = Callable[[Batch, int], Tensor]
"""Token ids [P, depth] of a batch's P positions: column k of row p is drafted for the token at p + 1 + k, after the
tokens up to p and k right drafts. Rows with fewer tokens to come in their sequence hold anything."""


@dataclass(frozen=True, slots=True)
class Reach:
    """Of some chains."""

    chains: int
    accepted: tuple[float, ...]
    """Share of chains whose first 1, 2, … drafts are all the target's own tokens."""

    @classmethod
    def of(cls, hits: NDArray[np.bool_]) -> "Reach":
        """``hits``: [chains, depth]; there must be some."""
        return cls(len(hits), tuple(np.logical_and.accumulate(hits, axis=1).mean(axis=0).tolist()))

    @property
    def mean_accepted(self) -> float:
        """Drafts before the first wrong one; without the token that the target gives itself."""
        return sum(self.accepted)

    @property
    def accuracy(self) -> tuple[float, ...]:
        """Of the 1st, 2nd, … draft, where all before it were right."""
        before = (1.0, *self.accepted[:-1])
        return tuple(after / each if each else 0.0 for each, after in zip(before, self.accepted, strict=True))

    def as_json(self) -> dict[str, Any]:
        """Plain values, with what follows from them."""
        return {**asdict(self), "accuracy": self.accuracy, "mean_accepted": self.mean_accepted}


@dataclass(frozen=True, slots=True)
class ChainReport:
    """Over all chains and by the prompts' workload."""

    overall: Reach
    by_workload: Mapping[str, Reach]

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "overall": self.overall.as_json(),
            "by_workload": {name: reach.as_json() for name, reach in self.by_workload.items()},
        }


def measure_chains(
    draft: Draft, sequences: Sequence[AnsweredPrompt], depth: int, batch_tokens: int = 4096
) -> ChainReport:
    """Chains of ``depth`` drafts after every token of the greedy answers that has so many behind it.

    Raises:
        ValueError: there is none.
    """
    greedy = [each for each in sequences if each.prompt.temperature == 0 and len(each.answer.answer) > depth]
    if not greedy:
        raise ValueError(f"no held-out greedy answer is longer than {depth} tokens; generate more answers first")
    hits, workloads = [], []
    for group in in_batches(greedy, batch_tokens):
        with torch.inference_mode():
            batch = load_batch(group)
            drafts = draft(batch, depth).numpy()
        for sequence, rows in _rows(group):
            found = _hits(drafts[rows], sequence, depth)
            hits.append(found)
            workloads += [sequence.prompt.workload] * len(found)
    everything, workload = np.concatenate(hits), np.array(workloads)
    return ChainReport(
        Reach.of(everything), {str(name): Reach.of(everything[workload == name]) for name in np.unique(workload)}
    )


def _rows(group: Sequence[AnsweredPrompt]) -> Iterator[tuple[AnsweredPrompt, slice]]:
    start = 0
    for sequence in group:
        yield sequence, slice(start, start + len(sequence))
        start += len(sequence)


def _hits(drafts: NDArray[np.int64], sequence: AnsweredPrompt, depth: int) -> NDArray[np.bool_]:
    """[chains, depth]: whether each draft is the answer's token; ``drafts`` are those of the sequence's positions."""
    answer = sequence.answer.answer
    # The first chain starts after the answer's first token: until then the target is busy with the prompt.
    starts = np.arange(1, len(answer) - depth + 1)
    columns = np.arange(depth)
    rows = len(sequence.answer.prompt) - 1 + starts
    return np.asarray(drafts[rows] == answer[starts[:, None] + columns])
