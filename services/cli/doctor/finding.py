"""What one check came to."""

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARNING = "warning"
    """It starts, but may be slow or fail under load."""
    FAILED = "failed"
    """It cannot work like this."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    check: str
    level: Level
    found: str
    fix: str = ""
    """What to do; empty where nothing is wrong."""


def ok(check: str, found: str) -> Finding:
    """Nothing is wrong."""
    return Finding(check, Level.OK, found)


def warning(check: str, found: str, fix: str) -> Finding:
    """See ``Level``."""
    return Finding(check, Level.WARNING, found, fix)


def failed(check: str, found: str, fix: str) -> Finding:
    """See ``Level``."""
    return Finding(check, Level.FAILED, found, fix)
