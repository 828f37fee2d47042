"""The page's pictures, as SVG."""

import io
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from services.cli.report.curves import Course, Survival
from services.cli.report.speeds import ORACLE, Speed
from services.common.expert import Expert

COLORS = {
    Expert.PLAIN.value: "grey",
    Expert.NGRAM.value: "tab:blue",
    Expert.EAGLE3.value: "tab:green",
    Expert.DRAFT_MODEL.value: "tab:orange",
    ORACLE: "tab:red",
}
FEWEST_REQUESTS = 3
"""From so many on a mean over requests is drawn."""


def speed_planes(found: Mapping[str, Mapping[str, Speed]]) -> str:
    """Speed and waste, one panel a workload; settings of one expert are joined from shallow to deep."""
    columns = min(3, len(found))
    rows = -(-len(found) // columns)
    figure = Figure(figsize=(4.2 * columns, 3.4 * rows), layout="constrained")
    for number, (workload, by_setting) in enumerate(found.items()):
        axes = figure.add_subplot(
            rows, columns, number + 1, title=workload, xlabel="wasted share of drafts", ylabel="speedup"
        )
        lines: dict[str, list[tuple[float, float, str]]] = {}
        for name, speed in by_setting.items():
            expert, _, depth = name.partition("-")
            lines.setdefault(expert, []).append((speed.waste, speed.speedup, depth))
        for expert, points in lines.items():
            axes.plot(
                [waste for waste, _, _ in points],
                [speedup for _, speedup, _ in points],
                marker="*" if expert == ORACLE else "o",
                color=COLORS[expert],
                label=expert,
                linewidth=0.8,
            )
            for waste, speedup, depth in points:
                axes.annotate(depth, (waste, speedup), fontsize=7, xytext=(3, 3), textcoords="offset points")
        axes.axhline(1.0, color="grey", linestyle=":")
        _finish(axes)
    return _svg(figure)


def survival_panels(found: Sequence[Survival]) -> str:
    """Observed and expected survival by position, one panel an expert."""
    figure = Figure(figsize=(4.2 * len(found), 3.4), layout="constrained")
    for number, each in enumerate(found):
        axes = figure.add_subplot(
            1, len(found), number + 1, title=each.expert, xlabel="draft position", ylabel="accepted up to there"
        )
        positions = np.arange(1, len(each.observed) + 1)
        axes.plot(positions, each.observed, marker="o", color=COLORS[each.expert], label="observed")
        if each.expected is not None:
            axes.plot(positions, each.expected, marker="x", color="black", linestyle="--", label="depth model")
        axes.set_ylim(0, 1)
        _finish(axes)
    return _svg(figure)


def course_panels(found: Sequence[Course]) -> str:
    """Draft tokens asked and accepted by block, one panel an expert."""
    figure = Figure(figsize=(4.2 * len(found), 3.4), layout="constrained")
    for number, each in enumerate(found):
        axes = figure.add_subplot(
            1, len(found), number + 1, title=each.expert, xlabel="block of the request", ylabel="draft tokens"
        )
        shown = np.flatnonzero(each.requests >= min(FEWEST_REQUESTS, each.requests.max()))
        axes.plot(shown, each.drafted[shown], color="grey", label="drafted")
        axes.plot(shown, each.accepted[shown], color=COLORS[each.expert], label="accepted")
        axes.set_ylim(bottom=0)
        _finish(axes)
    return _svg(figure)


def _finish(axes: Axes) -> None:
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)


def _svg(figure: Figure) -> str:
    """The ``svg`` element alone; the same figure gives the same text."""
    written = io.StringIO()
    with rc_context({"svg.hashsalt": "forerun"}):
        figure.savefig(written, format="svg", metadata={"Date": None})
    text = written.getvalue()
    return text[text.index("<svg") :]
