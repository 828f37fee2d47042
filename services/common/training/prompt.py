"""One prompt of the training set, and how it falls into the training or the held-out part."""

import hashlib
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Conversation = TypeVar("Conversation")
Split = Literal["train", "held_out"]
HELD_OUT_PERCENT = 5
SAMPLED_PERCENT = 15
"""Of the prompts are answered at temperature 1, the others greedily."""


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation."""

    role: Literal["user", "assistant"]
    content: str


@dataclass(frozen=True, slots=True)
class Prompt:
    """A conversation that ends with the user's turn.

    Attributes:
        id: of its text; the same text is the same prompt, so that it cannot be in both parts.
        workload: kind of work, by which the report is split.
        source: data set or generator.
        temperature: the target answers it with: 0 or 1.
    """

    id: str
    workload: str
    source: str
    split: Split
    temperature: float
    messages: tuple[Message, ...]

    @classmethod
    def make(cls, workload: str, source: str, split: Split, messages: Iterable[Message]) -> Self:
        """A prompt whose id and temperature follow from its text."""
        turns = tuple(messages)
        text = "\n".join(f"{turn.role}: {turn.content}" for turn in turns)
        digest = stable_hash(re.sub(r"\s+", " ", text.casefold()))
        temperature = 1.0 if digest % 100 < SAMPLED_PERCENT else 0.0
        return cls(f"{digest:016x}", workload, source, split, temperature, turns)


def split_of(key: str) -> Split:
    """The part in which everything made from the item ``key`` belongs: decided by a hash, so it never changes.

    Args:
        key: names the item, not the prompt: all prompts about one passage fall into one part.
    """
    return "held_out" if stable_hash(f"held-out {key}") % 100 < HELD_OUT_PERCENT else "train"


def stable_hash(text: str) -> int:
    """64 bits that depend on the text alone."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def write_prompts(path: Path, prompts: Iterable[Prompt]) -> None:
    """One JSON object a line."""
    write_conversations(path, prompts)


def read_prompts(path: Path) -> list[Prompt]:
    """What ``write_prompts`` wrote, in the same order."""
    return read_conversations(path, Prompt)


def write_conversations(path: Path, conversations: "Iterable[DataclassInstance]") -> None:
    """Dataclasses with ``messages``, one JSON object a line; the file appears when it is whole."""
    part = path.with_suffix(".part")
    with part.open("w", encoding="utf-8") as file:
        for each in conversations:
            file.write(json.dumps(asdict(each)) + "\n")
    part.replace(path)


def read_conversations(path: Path, kind: Callable[..., Conversation]) -> list[Conversation]:
    """What ``write_conversations`` wrote of one kind, in the same order."""
    found = []
    with path.open(encoding="utf-8") as file:
        for line in file:
            fields = json.loads(line)
            fields["messages"] = tuple(Message(**turn) for turn in fields["messages"])
            found.append(kind(**fields))
    return found
