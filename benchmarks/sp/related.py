"""Figures that say something of speculation as a whole and were measured elsewhere."""

import json
from pathlib import Path
from typing import Any

from benchmarks.related import related_figures
from benchmarks.report import REPORTS, Figure

OTHER_REPORTS = {
    "sp-synthetic": ("synthetic_sp_vs_pp_p2", "synthetic_sp_vs_pp_p4", "synthetic_vs_closed_form"),
    "planner": ("planner_error_max",),
}
ADAPTER_FIGURES = {"agreement": "overall", "agreement_top80": "confident"}
"""Figures by the names that the adapter's own report has for them."""


def figures_of_speculation(adapter: Path, reports: Path = REPORTS) -> tuple[dict[str, Figure], dict[str, Any]]:
    """Those that have been measured, and the origins: revision, date and command, or the adapter's folder."""
    figures, origins = related_figures(OTHER_REPORTS, reports)
    path = adapter / "report.json"
    if path.exists():
        report = json.loads(path.read_text())
        figures |= {figure: Figure.of([report[name]["share"]], "ratio") for figure, name in ADAPTER_FIGURES.items()}
        origins["adapter"] = str(adapter)
    return figures, origins
