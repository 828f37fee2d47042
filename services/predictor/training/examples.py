"""What a predictor learns from: the state at each token of an answer, and how many tokens followed."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open

from services.common.training.answer_shards import Answer, read_shard
from services.common.training.states import STATES, states_path


@dataclass(frozen=True, slots=True, eq=False)
class Examples:
    """Tokens of answers, one after another.

    Attributes:
        states: the residual stream at the token, [tokens, hidden] float16.
        answer_tokens: that the answer had then, the token included; 0 at the prompt's last one. [tokens].
        remaining: tokens that followed, [tokens]; where the answer was cut, that followed until then.
        is_cut: whether the answer was cut by its limit, [tokens].
        prompt_ids: one for each answer.
        answer_of: index into ``prompt_ids``, [tokens].
    """

    states: NDArray[np.float16]
    answer_tokens: NDArray[np.int64]
    remaining: NDArray[np.int64]
    is_cut: NDArray[np.bool_]
    prompt_ids: Sequence[str]
    answer_of: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.remaining)

    def labels(self, thresholds: Sequence[int]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Whether each answer ended within each threshold, and whether that is known; both [tokens, thresholds].

        An answer that was cut with n tokens to come would have ended after them, which says nothing of thresholds
        beyond n.
        """
        limits = np.array(thresholds)
        is_known = ~self.is_cut[:, None] | (self.remaining[:, None] >= limits)
        return (self.remaining[:, None] <= limits) & ~self.is_cut[:, None], is_known

    def of(self, prompt_ids: Collection[str]) -> "Examples":
        """Those of some answers."""
        is_wanted = np.array([each in prompt_ids for each in self.prompt_ids], bool)
        rows = is_wanted[self.answer_of]
        return Examples(
            self.states[rows],
            self.answer_tokens[rows],
            self.remaining[rows],
            self.is_cut[rows],
            self.prompt_ids,
            self.answer_of[rows],
        )


def read_examples(
    shards: Iterable[Path],
    states: Path,
    layer: int,
    prompt_ids: Collection[str],
    max_answer_tokens: int,
    stop_ids: Collection[int],
) -> Examples:
    """Reads the answers to some prompts whose states are on disk.

    Args:
        shards: of answers.
        states: the states' folder.
        layer: number of layers before the stream.
        prompt_ids: whose answers are wanted.
        max_answer_tokens: at which answers were cut.
        stop_ids: tokens that end an answer.

    Raises:
        ValueError: there are none.
    """
    found: list[tuple[Answer, NDArray[np.float16]]] = []
    for shard in shards:
        with safe_open(states_path(states, shard, layer), framework="np") as file:
            streams = file.get_slice(STATES)
            start = 0
            for answer in read_shard(shard):
                first, start = start + len(answer.prompt) - 1, start + answer.positions
                if answer.prompt_id in prompt_ids and len(answer.answer):
                    found.append((answer, streams[first:start]))
    if not found:
        raise ValueError("no answers to learn from; generate some first")
    lengths = np.array([len(answer.answer) for answer, _ in found])
    cut = np.array([_is_cut(answer, max_answer_tokens, stop_ids) for answer, _ in found])
    answer_tokens = np.concatenate([np.arange(length) for length in lengths])
    return Examples(
        states=np.concatenate([stream for _, stream in found]),
        answer_tokens=answer_tokens,
        remaining=np.repeat(lengths, lengths) - answer_tokens,
        is_cut=np.repeat(cut, lengths),
        prompt_ids=[answer.prompt_id for answer, _ in found],
        answer_of=np.repeat(np.arange(len(found)), lengths),
    )


def _is_cut(answer: Answer, max_answer_tokens: int, stop_ids: Collection[int]) -> bool:
    return len(answer.answer) >= max_answer_tokens and int(answer.answer[-1]) not in stop_ids
