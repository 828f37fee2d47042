"""What one pipeline said at one batch size: kept in a file, so that a run that was cut off goes on where it stopped."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from services.common.file_digest import file_digest
from services.workers.draft_adapter.files import WEIGHTS_NAME


@dataclass(frozen=True)
class Side:
    """One pipeline, with drafts or without."""

    dtype: str
    layers: list[int]
    """Of each stage."""
    adapter: Path | None
    """Whose drafts run ahead; None: no speculation."""

    @property
    def name(self) -> str:
        """For files, for example "float32-p2-sp"."""
        return f"{self.dtype}-p{len(self.layers)}-{'plain' if self.adapter is None else 'sp'}"


@dataclass(frozen=True)
class Part:
    """Every answer of one pipeline at one batch size as token ids, and what happened to drafts meanwhile."""

    answers: list[list[int]]
    drafted: int
    accepted: int
    dropped: int
    seconds: float


class PartStore:
    """Parts in a folder, each with the conditions under which it was made; under others it is as good as absent."""

    def __init__(self, folder: Path, conditions: Mapping[str, Any]) -> None:
        """``conditions``: whatever JSON can say that must be the same for a part to be used again."""
        self._folder = folder
        self._conditions = conditions

    def read(self, side: Side, batch: int) -> Part | None:
        """The part, or None when it is to be made."""
        path = self._path(side, batch)
        if not path.is_file():
            return None
        stored = json.loads(path.read_text())
        return Part(**stored["part"]) if stored["conditions"] == self._conditions_of(side) else None

    def write(self, side: Side, batch: int, part: Part) -> None:
        """Replaces what was there."""
        self._folder.mkdir(parents=True, exist_ok=True)
        stored = {"conditions": self._conditions_of(side), "part": asdict(part)}
        self._path(side, batch).write_text(json.dumps(stored))

    def _conditions_of(self, side: Side) -> dict[str, Any]:
        adapter = None if side.adapter is None else file_digest(side.adapter / WEIGHTS_NAME)
        return {**self._conditions, "layers": side.layers, "adapter": adapter}

    def _path(self, side: Side, batch: int) -> Path:
        return self._folder / f"{side.name}-b{batch}.json"
