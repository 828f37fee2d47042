"""``forerun bench report``: a page of what a grid recorded."""

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from services.cli.console import output_console
from services.cli.errors import CliError, reports_errors


@reports_errors
def report(
    grid: Annotated[Path, typer.Argument(help="Folder that `forerun bench grid` recorded into.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The HTML file.")] = Path("report.html"),
    depth_model: Annotated[
        Path | None, typer.Option(help="Folder of a depth model: what it expects is drawn beside what came.")
    ] = None,
    blocks: Annotated[
        Path | None,
        typer.Option(help="Other block records, as of a replica with `experts.record`; default: those of the grid."),
    ] = None,
) -> None:
    """Draw what a grid recorded: speed and waste, how drafts survive, and how blocks change over a request.

    One HTML file that needs nothing else. With --blocks of a replica that chooses by itself, the last part shows how
    its depths went.

    \b
    Examples:
      forerun bench report grid
      forerun bench report grid -o grid.html --depth-model models/smollm2-135m/depth
    """
    if find_spec("matplotlib") is None:
        raise CliError("the report's plots need matplotlib; pip install matplotlib")
    # Here, not above: they load numpy, pyarrow and matplotlib, which takes longer than --help should.
    from services.cli.grid.journal import BLOCKS, REQUESTS  # noqa: PLC0415
    from services.cli.report.page import report_page  # noqa: PLC0415
    from services.router.apex.training.request_table import read_requests  # noqa: PLC0415
    from services.scheduler.apex.block_table import read_blocks  # noqa: PLC0415
    from services.scheduler.apex.depth_net import load_depth_net  # noqa: PLC0415

    rows = read_requests(grid / REQUESTS)
    if not rows:
        raise CliError(f"{grid}: holds no {REQUESTS}; record it with `forerun bench grid`")
    net = None if depth_model is None else load_depth_net(depth_model)
    page = report_page(f"Grid {grid.name}", rows, read_blocks(blocks or grid / BLOCKS), net)
    try:
        out.write_text(page, encoding="utf-8")
    except OSError as error:
        raise CliError(f"--out: cannot write {out}: {error.strerror}") from error
    output_console().print(f"Written to {out}.", highlight=False)
