"""``forerun plan``: which split of the devices will be fastest, and why."""

import json
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from services.cli.console import output_console
from services.cli.errors import CliError, reports_errors
from services.scheduler.sp_planner import Plan, PlannedSplit, make_plan
from services.scheduler.sp_profile import Profile, load_profile

command = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False)

PLOT_SUFFIXES = (".svg", ".png", ".pdf")


@command.command()
@reports_errors
def plan(
    profile: Annotated[Path, typer.Argument(metavar="PROFILE", help="What was measured of each split; JSON or YAML.")],
    batch: Annotated[int | None, typer.Option(min=1, help="Sequences at once; default: what each KV holds.")] = None,
    drop: Annotated[
        float | None, typer.Option(min=0.0, max=1.0, help="Share of drafts to drop; default: the best for each split.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Draw throughput over batch into this .svg, .png or .pdf.")] = None,
) -> None:
    """Predict the decode throughput of every split of the devices, and pick one.

    A split is PP x TP x SP: pipeline stages whose micro-batches take turns (PP), devices that share each layer (TP),
    and stages that run ahead on drafts (SP). The profile holds measured step times, as `forerun profile` writes them;
    the rest is arithmetic.

    \b
    Examples:
      forerun plan profile.json                       every split at the batch that its memory holds
      forerun plan profile.json --batch 8             with eight requests at once
      forerun plan profile.json --drop 0.2 --json | jq .pick
      forerun plan profile.json --plot plan.svg

    \b
    A profile of two devices:
      {"model": "m", "devices": 2, "splits": [
        {"pp": 2, "kv_sequences": 16,
         "stages": [{"rows": [1, 8], "ms": [15, 20]}, {"rows": [1, 8], "ms": [18, 23]}]},
        {"sp": 2, "kv_sequences": 16, "acceptance": [0.3, 0.6, 0.8, 0.9],
         "stages": [{"rows": [1, 16], "ms": [13, 25]}, {"rows": [1, 16], "ms": [20, 35]}],
         "draft": {"rows": [1, 16], "ms": [3, 6]}}]}

    acceptance: how often drafts are right, in equal shares from the least to the most confident.
    """
    known = load_profile(profile)
    if plot is not None:
        _draw(known, drop, plot)
    planned = make_plan(known, batch, drop)
    if as_json:
        typer.echo(json.dumps(_document(known, planned)))
    else:
        _show(known, planned)


def _draw(profile: Profile, drop: float | None, path: Path) -> None:
    if path.suffix not in PLOT_SUFFIXES:
        raise CliError(f"--plot: {path} must end in {', '.join(PLOT_SUFFIXES)}")
    if find_spec("matplotlib") is None:
        raise CliError("--plot needs matplotlib; pip install matplotlib")
    # Imported here: it takes longer to import than everything else takes to run.
    from services.cli.plan_plot import draw_throughput  # noqa: PLC0415

    try:
        draw_throughput(profile, drop, path)
    except OSError as error:
        raise CliError(f"--plot: {path}: {error.strerror}; name a file that can be written") from error


def _document(profile: Profile, plan: Plan) -> dict[str, Any]:
    splits = [_split_document(planned) for planned in plan.ranked]
    return {
        "model": profile.model,
        "devices": profile.devices,
        "pick": splits[0],
        "splits": splits,
        "not_profiled": [dict(zip(("pp", "tp", "sp"), shape, strict=True)) for shape in plan.not_profiled],
    }


def _split_document(planned: PlannedSplit) -> dict[str, Any]:
    pp, tp, sp = planned.split.shape
    prediction = planned.prediction
    figures = {"tokens_per_s": prediction.tokens_per_s, **asdict(prediction)}
    if sp == 1:
        del figures["speculation"]
    variant = {"layers": planned.split.layers, "micro_batching": planned.split.micro_batching}
    return {"pp": pp, "tp": tp, "sp": sp, **variant, **figures, "reason": planned.reason}


def _show(profile: Profile, plan: Plan) -> None:
    console = output_console()
    table = Table(
        "", "PP", "TP", "SP", "LAYERS", "BATCH", "TOKENS/S", "STEP", "TOKENS A STEP", "WHAT BOUNDS IT", box=None
    )
    for planned in plan.ranked:
        prediction = planned.prediction
        is_pick = planned is plan.pick
        table.add_row(
            "->" if is_pick else "",
            *(str(part) for part in planned.split.shape),
            "+".join(map(str, planned.split.layers)) + ("" if planned.split.micro_batching else " one batch"),
            f"{prediction.batch:g}",
            f"{prediction.tokens_per_s:.0f}",
            f"{prediction.step_ms:.1f} ms",
            f"{prediction.tokens_per_step:.1f}",
            planned.reason,
            style="bold green" if is_pick else "",
        )
    for shape in plan.not_profiled:
        table.add_row("", *(str(part) for part in shape), "", "", "", "", "", "not profiled", style="dim")
    origin = f" ({profile.origin})" if profile.origin else ""
    console.print(Text(f"{profile.model} on {profile.devices} devices{origin}"))
    console.print(table)
    console.print(Text(_verdict(plan)))


def _verdict(plan: Plan) -> str:
    pick = f"Pick: {plan.pick.split.name}"
    if len(plan.ranked) == 1:
        return f"{pick}, the only profiled split."
    next_best = plan.ranked[1]
    lead = plan.pick.prediction.tokens_per_s / next_best.prediction.tokens_per_s - 1
    return f"{pick}: {lead:.1%} above the next best, {next_best.split.name}."
