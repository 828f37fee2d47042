"""Figures that other programs have measured, repeated in this report with where they come from."""

import json
from pathlib import Path
from typing import Any

from benchmarks.report import REPORTS, Figure

OTHER_REPORTS = {
    "sp-synthetic": ("synthetic_sp_vs_pp_p2", "synthetic_sp_vs_pp_p4", "synthetic_vs_closed_form"),
    "planner": ("planner_error_max",),
}
"""By report, the figures that say something of speculation as a whole."""
ADAPTER_FIGURES = {"agreement": "overall", "agreement_top80": "confident"}
"""Figures by the names that the adapter's own report has for them."""


def related_figures(adapter: Path, reports: Path = REPORTS) -> tuple[dict[str, Figure], dict[str, Any]]:
    """Those that have been measured, and the origins: revision, date and command, or the adapter's folder."""
    figures: dict[str, Figure] = {}
    origins: dict[str, Any] = {}
    for name, wanted in OTHER_REPORTS.items():
        path = reports / f"{name}.json"
        if path.exists():
            report = json.loads(path.read_text())
            figures |= {each: Figure(**report["figures"][each]) for each in wanted if each in report["figures"]}
            origins[name] = {field: report["provenance"][field] for field in ("git_sha", "date", "command")}
    path = adapter / "report.json"
    if path.exists():
        report = json.loads(path.read_text())
        figures |= {figure: Figure.of([report[name]["share"]], "ratio") for figure, name in ADAPTER_FIGURES.items()}
        origins["adapter"] = str(adapter)
    return figures, origins
