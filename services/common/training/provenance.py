"""``provenance.json`` beside a trained part: out of what it was made and how, enough to make it again."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from services.common.file_digest import file_digest
from services.common.training.answer_shards import Answer
from services.common.training.answers import AnswerOptions
from services.common.training.prompt import Prompt
from services.common.training.wheels import DATA_WHEELS
from services.common.version import versions, vllm_version

PROVENANCE_NAME = "provenance.json"
_PACKAGES = ("torch", "transformers", "safetensors", "numpy")


@dataclass(frozen=True, slots=True)
class Part:
    """What one part of the data came to."""

    prompts: Mapping[str, int]
    """Answered ones, by workload."""
    prompts_alone: int
    """Without an answer."""
    prompt_tokens: int
    answer_tokens: int

    @classmethod
    def of(cls, pairs: Iterable[tuple[Prompt, Answer]]) -> "Part":
        """The counts over prompts with their answers, which may be empty."""
        pairs = list(pairs)
        answered = [prompt for prompt, answer in pairs if len(answer.answer)]
        return cls(
            prompts=dict(sorted(Counter(prompt.workload for prompt in answered).items())),
            prompts_alone=len(pairs) - len(answered),
            prompt_tokens=sum(len(answer.prompt) for _, answer in pairs),
            answer_tokens=sum(len(answer.answer) for _, answer in pairs),
        )


@dataclass(frozen=True, slots=True)
class Provenance:
    """Everything that decided the weights."""

    command: str
    model_config_sha256: str
    """Of the target's ``config.json``."""
    prompt_seed: int
    answers: AnswerOptions
    training: Any
    """A dataclass: how the part was trained."""
    train: Part
    held_out: Part

    def as_json(self) -> dict[str, Any]:
        """Plain values, with the pinned data sources and the versions that ran."""
        return {
            **asdict(self),
            "sources": [asdict(wheel) for wheel in DATA_WHEELS],
            "versions": {**versions(*_PACKAGES), "vllm": vllm_version()},
        }

    def write(self, folder: Path) -> None:
        """Stores it in ``folder``."""
        (folder / PROVENANCE_NAME).write_text(json.dumps(self.as_json(), indent=2) + "\n", encoding="utf-8")


def config_sha256(model: Path) -> str:
    """Digest of a checkpoint's ``config.json``."""
    return file_digest(model / "config.json")
