"""Sequences to train on: streams after some layers with the target's last ones, read from disk as needed."""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from services.common.training.answer_shards import Answer, read_shard
from services.common.training.prompt import Prompt, Split
from services.common.training.states import STATES, states_path


@dataclass(frozen=True, slots=True, eq=False)
class AnsweredPrompt:
    """One answered prompt; its states lie in the files from row ``start`` on, one for each token but the last."""

    prompt: Prompt
    answer: Answer
    state_paths: tuple[Path, ...]
    """One file a layer that is read."""
    last_path: Path
    start: int

    def __len__(self) -> int:
        return self.answer.positions


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Packed sequences, with P positions of all and L of them that predict the answers' tokens.

    Attributes:
        tokens: [P] ids; the last token of a sequence, after which nothing is known, is left out.
        states: [P, layers × hidden] float32, the residual streams after the layers that are read, side by side.
        last: [P, hidden] float32, the one before the target's final norm.
        lengths: of the sequences; sum P.
        starts: [P] bool, the first position of each sequence.
        answers: [L] indexes into P.
        labels: [L] token ids of the answers.
    """

    sequences: Sequence[AnsweredPrompt]
    tokens: Tensor
    states: Tensor
    last: Tensor
    lengths: list[int]
    starts: Tensor
    answers: Tensor
    labels: Tensor


class TrainingData:
    """The ``prompts``, answered or alone, whose streams, after some layers and the last, are on disk."""

    def __init__(
        self,
        shards: Sequence[Path],
        states: Path,
        layers: Sequence[int],
        last_layer: int,
        prompts: Mapping[str, Prompt],
    ) -> None:
        """``layers``: numbers of layers before the streams that are read; may be none."""
        self._parts: dict[Split, list[AnsweredPrompt]] = {"train": [], "held_out": []}
        for shard in shards:
            *state_paths, last_path = (states_path(states, shard, each) for each in (*layers, last_layer))
            if not all(path.is_file() for path in (*state_paths, last_path)):
                continue
            start = 0
            for answer in read_shard(shard):
                if (prompt := prompts.get(answer.prompt_id)) is not None:
                    sequence = AnsweredPrompt(prompt, answer, tuple(state_paths), last_path, start)
                    self._parts[prompt.split].append(sequence)
                start += answer.positions

    def part(self, split: Split) -> list[AnsweredPrompt]:
        """The sequences of one part, in the order of the shards."""
        return self._parts[split]

    def epoch(self, batch_tokens: int, seed: int) -> list[list[AnsweredPrompt]]:
        """The training part in batches of at most ``batch_tokens`` positions, shuffled by ``seed``."""
        sequences = list(self.part("train"))
        random.Random(seed).shuffle(sequences)
        return list(in_batches(sequences, batch_tokens))


def in_batches(sequences: Sequence[AnsweredPrompt], batch_tokens: int) -> Iterator[list[AnsweredPrompt]]:
    """Splits in order; a longer sequence is a batch of its own."""
    batch: list[AnsweredPrompt] = []
    room = batch_tokens
    for sequence in sequences:
        if batch and len(sequence) > room:
            yield batch
            batch, room = [], batch_tokens
        batch.append(sequence)
        room -= len(sequence)
    if batch:
        yield batch


def load_batch(sequences: Sequence[AnsweredPrompt]) -> Batch:
    """Reads the streams of ``sequences`` and packs them."""
    lengths = [len(sequence) for sequence in sequences]
    starts = torch.zeros(sum(lengths), dtype=torch.bool)
    answers, start = [], 0
    for sequence in sequences:
        starts[start] = True
        # The prompt's last position predicts the answer's first token.
        answers.append(torch.arange(start + len(sequence.answer.prompt) - 1, start + len(sequence)))
        start += len(sequence)
    return Batch(
        sequences=sequences,
        tokens=torch.cat([read_tokens(sequence.answer) for sequence in sequences]),
        states=torch.cat([_states(sequence) for sequence in sequences]),
        last=torch.cat([_read(sequence.last_path, sequence) for sequence in sequences]),
        lengths=lengths,
        starts=starts,
        answers=torch.cat(answers),
        labels=torch.cat([torch.from_numpy(sequence.answer.answer) for sequence in sequences]).long(),
    )


def read_tokens(answer: Answer) -> Tensor:
    """Of prompt and answer but the last one, after which nothing is known."""
    return torch.cat([torch.from_numpy(answer.prompt), torch.from_numpy(answer.answer)])[:-1].long()


def _states(sequence: AnsweredPrompt) -> Tensor:
    if not sequence.state_paths:
        return torch.empty(len(sequence), 0)
    return torch.cat([_read(path, sequence) for path in sequence.state_paths], dim=-1)


def _read(path: Path, sequence: AnsweredPrompt) -> Tensor:
    with safe_open(path, framework="pt") as file:
        states: Tensor = file.get_slice(STATES)[sequence.start : sequence.start + len(sequence)]
    return states.float()
