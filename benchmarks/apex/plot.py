"""Draws the plane of speed and waste, one panel a workload."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from benchmarks.apex.metrics import Run, points
from benchmarks.apex.settings import FIXED, Setting


def draw_planes(runs: Sequence[Run], settings: Sequence[Setting], path: Path) -> None:
    """The runs of the smallest batch; the file's ending names the format."""
    smallest = min(run.batch for run in runs)
    found = points([run for run in runs if run.batch == smallest])
    workloads = sorted({workload for of_setting in found.values() for workload in of_setting})
    columns = min(3, len(workloads))
    rows = -(-len(workloads) // columns)
    figure = Figure(figsize=(4 * columns, 3.4 * rows), layout="constrained")
    for number, workload in enumerate(workloads):
        axes = figure.add_subplot(
            rows, columns, number + 1, title=workload, xlabel="wasted share of drafts", ylabel="speedup"
        )
        for setting in settings:
            if (point := found.get(setting.name, {}).get(workload)) is not None:
                is_fixed = setting.system == FIXED
                axes.scatter(
                    point.waste, point.speedup, marker="o" if is_fixed else "*", color="grey" if is_fixed else "tab:red"
                )
                axes.annotate(setting.name, (point.waste, point.speedup), fontsize=7)
        axes.axhline(1.0, color="grey", linestyle=":")
        axes.set_xlim(left=-0.05, right=1.05)
        axes.grid(alpha=0.3)
    figure.savefig(path)
