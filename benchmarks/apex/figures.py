"""Figures and tables from the runs; a figure that was not measured is left out."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.apex.metrics import (
    Point,
    Points,
    Run,
    accepted_per_block,
    aggregate,
    best_fixed,
    oracle_speedup,
    points,
    worst_workload_ratio,
)
from benchmarks.apex.settings import PER_BLOCK, PROFILES, Setting
from benchmarks.report import Figure

ENOUGH_BLOCKS = 50
"""Of an expert and depth, for its calibration to be looked at."""

Values = dict[str, tuple[list[float], str]]


def figures_of(runs: Sequence[Run], settings: Sequence[Setting], depth_model: Path | None) -> dict[str, Figure]:
    """Those of the smallest batch have plain names, those of others end in ``_bN``."""
    batches = sorted({run.batch for run in runs})
    wanted: Values = {}
    for batch in batches:
        mine = [run for run in runs if run.batch == batch]
        suffix = "" if batch == batches[0] else f"_b{batch}"
        wanted |= {f"{name}{suffix}": value for name, value in _of_batch(mine, settings, batch).items()}
    if depth_model is not None and (error := calibration_error(depth_model)) is not None:
        wanted["calibration_error_max"] = ([error], "tokens")
    return {name: Figure.of(values, unit) for name, (values, unit) in wanted.items() if values}


def calibration_error(depth_model: Path) -> float | None:
    """Largest difference between expected and observed accepted tokens of an expert and depth, by its own report."""
    path = depth_model / "report.json"
    if not path.is_file():
        return None
    rows = json.loads(path.read_text())["calibration"]
    return max((abs(row["expected"] - row["observed"]) for row in rows if row["blocks"] >= ENOUGH_BLOCKS), default=None)


def _of_batch(runs: Sequence[Run], settings: Sequence[Setting], batch: int) -> Values:
    best = best_fixed(points(runs), settings)
    by_round = [points([run for run in runs if run.round == number]) for number in sorted({run.round for run in runs})]

    def each(name: str, value: Callable[[Points], float | None]) -> list[float]:
        measured = [value(found) for found in by_round if name in found]
        return [number for number in measured if number is not None]

    wanted: Values = {
        "best_fixed_speedup": (each(best, lambda found: aggregate(found[best]).speedup), "ratio"),
        "best_fixed_waste": (each(best, lambda found: aggregate(found[best]).waste), "ratio"),
    }
    for name in (*PROFILES, *(f"{profile}{PER_BLOCK}" for profile in PROFILES)):
        wanted |= _of_profile(name, best, settings, each)
    for expert, figure in (("eagle3", "eagle3"), ("draft_model", "draft")):
        rounds = sorted({run.round for run in runs})
        values = [accepted_per_block([run for run in runs if run.round == number], f"{expert}-4") for number in rounds]
        wanted[f"{figure}_accepted_k4"] = ([value for value in values if value is not None], "tokens")
    if batch == 1:
        oracle = oracle_speedup(runs, settings)
        wanted["oracle_speedup"] = ([oracle], "ratio")
        whole = points(runs)
        if "s" in whole:
            wanted["oracle_gap"] = ([1 - aggregate(whole["s"]).speedup / oracle], "ratio")
    return wanted


def _of_profile(
    name: str,
    best: str,
    settings: Sequence[Setting],
    each: Callable[[str, Callable[[Points], float | None]], list[float]],
) -> Values:
    def waste_ratio(found: Points) -> float | None:
        of_best = aggregate(found[best]).waste
        return aggregate(found[name]).waste / of_best if of_best else None

    ratios = each(name, waste_ratio)
    return {
        f"apex_{name}_vs_best_fixed": (
            each(name, lambda found: aggregate(found[name]).speedup / aggregate(found[best]).speedup),
            "ratio",
        ),
        f"apex_{name}_waste_ratio": (ratios, "ratio"),
        f"apex_{name}_waste_cut": ([1 - ratio for ratio in ratios], "ratio"),
        f"apex_{name}_worst_workload_ratio": (
            each(name, lambda found: worst_workload_ratio(found, name, settings)),
            "ratio",
        ),
        f"aggregate_speedup_{name}": (each(name, lambda found: aggregate(found[name]).speedup), "ratio"),
        f"waste_{name}": (each(name, lambda found: aggregate(found[name]).waste), "ratio"),
    }


def tables(runs: Sequence[Run], settings: Sequence[Setting]) -> str:
    """Every setting in every workload, batch by batch, in Markdown."""
    return "\n\n".join(
        "\n".join(_table(batch, points([run for run in runs if run.batch == batch]), settings))
        for batch in sorted({run.batch for run in runs})
    )


def _table(batch: int, found: Points, settings: Sequence[Setting]) -> Iterator[str]:
    workloads = sorted({workload for of_setting in found.values() for workload in of_setting})
    yield f"Batch {batch}: speedup, waste and WAS in aggregate, then speedup / waste in each workload."
    yield ""
    yield "| setting | speedup | waste | WAS | " + " | ".join(workloads) + " |"
    yield "|---" * (4 + len(workloads)) + "|"
    for setting in settings:
        if setting.name in found:
            of_setting = found[setting.name]
            whole = aggregate(of_setting)
            was = "" if whole.was is None else f"{whole.was:.2f}"
            cells = [_cell(of_setting, workload) for workload in workloads]
            yield f"| {setting.name} | {whole.speedup:.2f} | {whole.waste:.1%} | {was} | " + " | ".join(cells) + " |"


def _cell(of_setting: Mapping[str, Point], workload: str) -> str:
    point = of_setting.get(workload)
    return "" if point is None else f"{point.speedup:.2f} / {point.waste:.0%}"
