"""Sequences to train on: states of an exit with the target's next tokens as labels, read from disk as needed."""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from services.workers.training.answer_shards import Answer, AnswerShards, read_shard
from services.workers.training.prompt import Prompt, Split
from services.workers.training.states import STATES, states_path


@dataclass(frozen=True, slots=True, eq=False)
class AnsweredPrompt:
    """One answered prompt; its states lie in ``path`` from row ``start`` on, one for each token but the last."""

    prompt: Prompt
    answer: Answer
    path: Path
    start: int

    def __len__(self) -> int:
        return self.answer.positions


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Packed sequences, with P positions of all and L of them with a label: those that predict the answer's tokens.

    Attributes:
        states: [P, hidden] float32.
        lengths: of the sequences; sum P.
        labelled: [L] indexes into P.
        labels: [L] the target's next token ids.
        top_ids: [L, K] the target's likeliest next token ids.
        top_logprobs: [L, K] float32.
    """

    sequences: Sequence[AnsweredPrompt]
    states: Tensor
    lengths: list[int]
    labelled: Tensor
    labels: Tensor
    top_ids: Tensor
    top_logprobs: Tensor


class TrainingData:
    """The answers to ``prompts`` whose states at one exit are on disk."""

    def __init__(self, shards: AnswerShards, states: Path, exit_layer: int, prompts: Mapping[str, Prompt]) -> None:
        self._parts: dict[Split, list[AnsweredPrompt]] = {"train": [], "held_out": []}
        for shard in shards.paths():
            path, start = states_path(states, shard, exit_layer), 0
            if not path.is_file():
                continue
            for answer in read_shard(shard):
                if (prompt := prompts.get(answer.prompt_id)) is not None:
                    self._parts[prompt.split].append(AnsweredPrompt(prompt, answer, path, start))
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
    """Reads the states of ``sequences`` and packs them."""
    states, labelled, start = [], [], 0
    for sequence in sequences:
        with safe_open(sequence.path, framework="pt") as file:
            states.append(file.get_slice(STATES)[sequence.start : sequence.start + len(sequence)])
        # The prompt's last position predicts the answer's first token.
        labelled.append(torch.arange(start + len(sequence.answer.prompt) - 1, start + len(sequence)))
        start += len(sequence)
    answers = [sequence.answer for sequence in sequences]
    return Batch(
        sequences=sequences,
        states=torch.cat(states).float(),
        lengths=[len(sequence) for sequence in sequences],
        labelled=torch.cat(labelled),
        labels=torch.cat([torch.from_numpy(answer.answer) for answer in answers]).long(),
        top_ids=torch.cat([torch.from_numpy(answer.top_ids) for answer in answers]).long(),
        top_logprobs=torch.cat([torch.from_numpy(answer.top_logprobs) for answer in answers]).float(),
    )
