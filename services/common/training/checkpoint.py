"""How a training goes on after an interruption: its state in one file, which belongs to one very training."""

from pathlib import Path
from typing import Any

import torch


class Checkpoint:
    """One file, whole or absent."""

    def __init__(self, path: Path | None) -> None:
        """``path``: None keeps nothing."""
        self._path = path

    def load(self, identity: str) -> dict[str, Any] | None:
        """What was saved under ``identity``, None where nothing was: another training must not be gone on with."""
        if self._path is None or not self._path.is_file():
            return None
        state: dict[str, Any] = torch.load(self._path, weights_only=True)
        return state if state["identity"] == identity else None

    def save(self, identity: str, **state: Any) -> None:
        """Replaces what was saved before."""
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        part = self._path.with_suffix(".part")
        torch.save({"identity": identity, **state}, part)
        part.replace(self._path)
