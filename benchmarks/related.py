"""Figures that other programs have measured, repeated in a report with where they come from."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import REPORTS, Figure


def related_figures(
    wanted: Mapping[str, Sequence[str]], reports: Path = REPORTS
) -> tuple[dict[str, Figure], dict[str, Any]]:
    """Those that have been measured, and their origins: revision, date and command.

    Args:
        wanted: by report, the names of the figures.
        reports: the reports' folder.
    """
    figures: dict[str, Figure] = {}
    origins: dict[str, Any] = {}
    for name, names in wanted.items():
        path = reports / f"{name}.json"
        if path.exists():
            report = json.loads(path.read_text())
            figures |= {each: Figure(**report["figures"][each]) for each in names if each in report["figures"]}
            origins[name] = {field: report["provenance"][field] for field in ("git_sha", "date", "command")}
    return figures, origins
