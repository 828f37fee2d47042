"""One prompt of a workload, and how it falls into one of three parts."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, Self, get_args

from services.common.training.prompt import Message, Prompt, read_conversations, stable_hash, write_conversations

WorkloadSplit = Literal["train", "validation", "test"]
SPLITS: Final[tuple[WorkloadSplit, ...]] = get_args(WorkloadSplit)
VALIDATION_PERCENT: Final = 25
"""Of what is not there for tests."""


@dataclass(frozen=True, slots=True)
class WorkloadPrompt:
    """A conversation that ends with the user's turn."""

    id: str
    """Of its text, so the same text is the same prompt."""
    workload: str
    split: WorkloadSplit
    source: str
    """Data set, generator or package; one that tests have is in no other part, and ``forerun train`` has none of it."""
    messages: tuple[Message, ...]
    max_tokens: int
    """Of the answer, at most."""

    @classmethod
    def make(
        cls, workload: str, split: WorkloadSplit, source: str, messages: Iterable[Message], max_tokens: int
    ) -> Self:
        """A prompt whose id follows from its text."""
        turns = tuple(messages)
        return cls(Prompt.make(workload, source, "train", turns).id, workload, split, source, turns, max_tokens)


def part_of(key: str) -> WorkloadSplit:
    """Train or validation, for everything made from the item ``key``: decided by a hash, so it never changes."""
    return "validation" if stable_hash(f"workload {key}") % 100 < VALIDATION_PERCENT else "train"


def write_prompts(path: Path, prompts: Iterable[WorkloadPrompt]) -> None:
    """One JSON object a line; the file appears when it is whole."""
    write_conversations(path, prompts)


def read_prompts(path: Path) -> list[WorkloadPrompt]:
    """What ``write_prompts`` wrote, in the same order."""
    return read_conversations(path, WorkloadPrompt)
