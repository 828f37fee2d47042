"""Answers on disk: numbered safetensors files of token ids, each whole or absent."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

_NAME = re.compile(r"answers-(\d{5})\.safetensors")


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """A prompt and the target's answer to it.

    Attributes:
        prompt: token ids, int32.
        answer: token ids, int32; an answer that ended by itself ends with the stop token.
    """

    prompt_id: str
    prompt: NDArray[np.int32]
    answer: NDArray[np.int32]

    @property
    def positions(self) -> int:
        """Tokens of prompt and answer after which the next one is known: all but the last."""
        return len(self.prompt) + len(self.answer) - 1


class AnswerShards:
    """The shards in one folder, in the order in which they were written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def paths(self) -> list[Path]:
        """The finished shards."""
        return sorted(path for path in self.folder.glob("answers-*.safetensors") if _NAME.fullmatch(path.name))

    def append(self, answers: Sequence[Answer]) -> Path:
        """Writes one more shard."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"answers-{len(self.paths()):05d}.safetensors"
        # Not matched by ``paths`` until it is whole.
        part = path.with_suffix(".part")
        save_file(
            {
                "ids": np.array([int(answer.prompt_id, 16) for answer in answers], dtype=np.uint64),
                "prompt_lengths": np.array([len(answer.prompt) for answer in answers], dtype=np.int32),
                "answer_lengths": np.array([len(answer.answer) for answer in answers], dtype=np.int32),
                "prompts": np.concatenate([answer.prompt for answer in answers]),
                "answers": np.concatenate([answer.answer for answer in answers]),
            },
            part,
        )
        return part.replace(path)

    def __iter__(self) -> Iterator[Answer]:
        for path in self.paths():
            yield from read_shard(path)


def read_shard(path: Path) -> list[Answer]:
    """The answers of one shard, in its order."""
    shard = load_file(path)
    prompts = np.split(shard["prompts"], np.cumsum(shard["prompt_lengths"])[:-1])
    answers = np.split(shard["answers"], np.cumsum(shard["answer_lengths"])[:-1])
    return [
        Answer(f"{number:016x}", prompt, answer)
        for number, prompt, answer in zip(shard["ids"].tolist(), prompts, answers, strict=True)
    ]
