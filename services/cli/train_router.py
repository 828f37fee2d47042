"""``forerun train router``: the model by which routers choose who drafts for a request."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from services.cli.console import output_console
from services.cli.errors import reports_errors
from services.cli.paths import cache_dir
from services.cli.train_options import (
    CacheOption,
    ModelOption,
    SeedOption,
    checkpoint_folder,
    command_line,
    download,
)
from services.cli.train_progress import train_progress

if TYPE_CHECKING:
    from services.router.apex.training.report import Report


@reports_errors
def train_router(
    model: ModelOption,
    grid: Annotated[Path, typer.Option(help="Folder that `forerun bench grid` recorded this model into.")],
    out: Annotated[Path, typer.Option(help="Folder that the model is written into.")],
    epochs: Annotated[
        int, typer.Option(min=1, help="Passes over the data at most; it stops when nothing improves.")
    ] = 600,
    seed: SeedOption = 0,
    cache: CacheOption = None,
) -> None:
    """Train the model by which a router chooses who drafts for a request, and how deep its first block is.

    It learns from whole requests: what each expert at each depth brought and wasted for a prompt. A router uses it with
    `experts.model: OUT`. Record the parts train, validation and test into one grid folder to learn from the first, to
    stop by the second and to have a report on the third.

    \b
    Examples:
      forerun bench grid --model smollm2-135m --out grid
      forerun bench grid --model smollm2-135m --out grid --split test
      forerun train router --model smollm2-135m --grid grid --out models/smollm2-135m/router
    """
    # Here, not above: they load torch, which takes seconds that --help should not.
    from services.cli.grid.journal import REQUESTS  # noqa: PLC0415
    from services.common.workloads.prompt import SPLITS  # noqa: PLC0415
    from services.common.workloads.store import WORKLOADS, WorkloadStore  # noqa: PLC0415
    from services.router.apex.training.route_training import Target, train_route_model  # noqa: PLC0415
    from services.router.apex.training.trainer import TrainOptions  # noqa: PLC0415

    store = WorkloadStore(cache_dir(cache), download)
    prompts = (prompt for name in WORKLOADS for split in SPLITS for prompt in store.prompts(name, split))
    target = Target(model, checkpoint_folder(model, cache))
    options = TrainOptions(epochs=epochs, seed=seed)
    with train_progress() as listen:
        report = train_route_model(grid / REQUESTS, target, prompts, out, options, command_line(), listen)
    _show(out, report)


def _show(out: Path, report: "Report") -> None:
    table = Table("PROFILE", "SPEEDUP", "WASTED", "BEST FIXED", "ITS SPEEDUP", "ORACLE", "GAP CLOSED", box=None)
    for each in report.profiles:
        table.add_row(
            each.profile, f"{each.speedup:.3f}", f"{each.wasted:.3f}", each.best_fixed,
            f"{each.best_fixed_speedup:.3f}", f"{each.oracle_speedup:.3f}", f"{each.utility_gap_closed:.0%}",
        )  # fmt: skip
    console = output_console()
    console.print(table)
    console.print(f"On {report.prompts:,} prompts that it did not learn from. Written to {out}.", highlight=False)
