"""``forerun train depth``: the model that chooses experts and draft depths block by block."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from services.cli.console import output_console
from services.cli.errors import reports_errors
from services.cli.train_options import command_line
from services.cli.train_progress import train_progress
from services.common.expert_profiles import ProfileName
from services.scheduler.apex.training.ablation import Ablation

if TYPE_CHECKING:
    from services.scheduler.apex.training.report import Report


@reports_errors
def train_depth(
    traces: Annotated[Path, typer.Option(help="Folder of *.parquet with block records.")],
    out: Annotated[Path, typer.Option(help="Folder that the model is written into.")],
    profile: Annotated[
        ProfileName,
        typer.Option(help="How much wasted draft tokens count in the utility."),
    ] = "speed",
    epochs: Annotated[
        int, typer.Option(min=1, help="Passes over the data at most; it stops when nothing improves.")
    ] = 60,
    seed: Annotated[int, typer.Option(help="Of weights and order.")] = 0,
    without: Annotated[
        list[Ablation] | None,
        typer.Option(help="Leave a part out, to see what it is worth; give it again for more of them."),
    ] = None,
) -> None:
    """Train the model that chooses who drafts a request's next block, and how many tokens.

    It learns from blocks that replicas recorded while they served the same prompts with different experts and depths.
    A replica uses it with `experts.depth_model: OUT`.

    \b
    Examples:
      forerun train depth --traces traces/blocks --out models/smollm2-135m/depth
      forerun train depth --traces traces/blocks --out /tmp/balanced --profile balanced
      forerun train depth --traces traces/blocks --out /tmp/ablation --without verifier
    """
    # Here, not above: they load torch, which takes seconds that --help should not.
    from services.scheduler.apex.training.depth_training import train_depth_model  # noqa: PLC0415
    from services.scheduler.apex.training.trainer import TrainOptions  # noqa: PLC0415

    options = TrainOptions(epochs=epochs, seed=seed, ablations=tuple(without or ()))
    with train_progress() as listen:
        report = train_depth_model(traces, out, profile, options, command_line(), listen)
    _show(out, report)


def _show(out: Path, report: "Report") -> None:
    table = Table("EXPERT", "DEPTH", "BLOCKS", "EXPECTED", "OBSERVED", box=None)
    for each in report.calibration:
        table.add_row(each.expert, str(each.depth), f"{each.blocks:,}", f"{each.expected:.3f}", f"{each.observed:.3f}")
    console = output_console()
    console.print(table)
    loss = f"{report.survival_loss:.4f} nats a block, constant hazards {report.baseline_survival_loss:.4f}"
    console.print(f"Survival loss {loss}. Written to {out}.", highlight=False)
