"""Figures with their spread and provenance, as JSON for programs and Markdown for people."""

import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.memory_speed import memory_gb_per_s
from services.common.version import FORERUN_VERSION, vllm_version

REPORTS = Path(__file__).parent / "reports"


@dataclass(frozen=True)
class Figure:
    """A measured number: the median of ``runs`` values between ``low`` and ``high``."""

    median: float
    low: float
    high: float
    unit: str
    runs: int

    @classmethod
    def of(cls, values: Sequence[float], unit: str) -> "Figure":
        """Raises ``ValueError`` without values: a figure that was not measured does not exist."""
        if not values:
            raise ValueError("no values were measured")
        return cls(round(statistics.median(values), 4), round(min(values), 4), round(max(values), 4), unit, len(values))


def provenance() -> dict[str, Any]:
    """Command, source, versions and machine."""
    return {
        "command": " ".join(["python", "-m", *_module_and_arguments()]),
        "git_sha": _git("rev-parse", "HEAD"),
        "git_clean": not _git("status", "--porcelain", "--untracked-files=no"),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {"forerun": FORERUN_VERSION, "vllm": vllm_version(), "python": platform.python_version()},
        "machine": {
            "processor": _processor(),
            "cores": len(os.sched_getaffinity(0)),
            "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
            "system": platform.platform(terse=True),
            "memory_gb_per_s_at_end": memory_gb_per_s(),
            "load_average_at_end": round(os.getloadavg()[0], 2),
        },
    }


def write_report(name: str, figures: Mapping[str, Figure], page: str, details: Mapping[str, Any] | None = None) -> None:
    """Writes ``reports/<name>.json`` and the page beside it, in which ``{figures}`` becomes the table."""
    REPORTS.mkdir(exist_ok=True)
    source = provenance()
    document = {"figures": {key: asdict(figure) for key, figure in figures.items()}, "provenance": source}
    if details:
        document["details"] = dict(details)
    (REPORTS / f"{name}.json").write_text(json.dumps(document, indent=2) + "\n")
    rows = ["| figure | median | low | high | unit | runs |", "|---|---|---|---|---|---|"]
    rows += [f"| {key} | {f.median:g} | {f.low:g} | {f.high:g} | {f.unit} | {f.runs} |" for key, f in figures.items()]
    machine = source["machine"]
    footer = (
        f"\n`{source['command']}` at {source['git_sha'][:12]}, {source['date']}; {machine['processor']}, "
        f"{machine['cores']} cores, {machine['memory_gib']} GiB; vLLM {source['versions']['vllm']}.\n"
    )
    (REPORTS / f"{name}.md").write_text(page.replace("{figures}", "\n".join(rows)) + footer)


def print_figures(figures: Mapping[str, Figure]) -> None:
    """One line a figure, for whoever watches the run."""
    for key, figure in figures.items():
        print(f"{key:40} {figure.median:10.4g} {figure.unit:8}  [{figure.low:.4g}, {figure.high:.4g}]")


def _module_and_arguments() -> list[str]:
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    module = spec.name.removesuffix(".__main__") if spec else sys.argv[0]
    return [module, *sys.argv[1:]]


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=False, cwd=REPORTS.parent)
    return done.stdout.strip()


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown"
