"""Where the CLI keeps things; the only place of ``services/cli`` that reads the environment for a path."""

import os
from pathlib import Path

from services.cli.errors import CliError

CACHE_VARIABLE = "FORERUN_CACHE"
DEFAULT_RUN_DIR = Path(".forerun/run")
"""Configurations, logs and state of the system that ``forerun up`` started, relative to where it was called."""


def cache_dir(override: Path | None = None) -> Path:
    """The cache folder: ``override``, else ``FORERUN_CACHE``, else ``forerun`` in the user's cache folder.

    Raises:
        CliError: the chosen path exists and is no folder.
    """
    chosen = override or _from_environment(CACHE_VARIABLE)
    if chosen is None:
        chosen = (_from_environment("XDG_CACHE_HOME") or Path.home() / ".cache") / "forerun"
    chosen = chosen.expanduser().absolute()
    if chosen.exists() and not chosen.is_dir():
        raise CliError(f"{chosen} is not a folder; give another with --cache-dir or {CACHE_VARIABLE}")
    return chosen


def _from_environment(name: str) -> Path | None:
    value = os.environ.get(name, "")
    return Path(value) if value else None
