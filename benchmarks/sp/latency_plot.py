"""Draws normalized latency over the arrival rate."""

from collections.abc import Sequence
from pathlib import Path
from statistics import median

from matplotlib.figure import Figure

from benchmarks.sp.latency import Load


def draw_latency(loads: Sequence[Load], at_knee: Load, path: Path) -> None:
    """One line a system through the medians, with all rounds around it; the file's ending names the format."""
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot(
        xlabel="requests per second", ylabel="ms per output token", title="Normalized latency, Poisson arrivals"
    )
    rates = [load.requests_per_s for load in loads]
    for label, series in (("best PP", [load.pp for load in loads]), ("SP", [load.sp for load in loads])):
        (line,) = axes.plot(rates, [median(each) for each in series], label=label, marker=".")
        low, high = [min(each) for each in series], [max(each) for each in series]
        axes.fill_between(rates, low, high, color=line.get_color(), alpha=0.15)
    axes.axvline(at_knee.requests_per_s, color="grey", linestyle=":", label="PP's knee")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path)
