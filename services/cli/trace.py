"""``forerun trace``: one request's spans as a tree, or its way through the pipeline as a picture."""

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from services.cli.console import output_console
from services.cli.errors import EXIT_FAILED, CliError, reports_errors
from services.cli.paths import DEFAULT_RUN_DIR
from services.cli.pipeline_picture import NoPictureError, Picture, picture_of
from services.cli.pipeline_svg import write_svg
from services.cli.pipeline_text import render_picture
from services.cli.run_dir import RunDir
from services.cli.trace_render import render_trace
from services.common.span_pipeline import FLUSH_INTERVAL_S
from services.common.trace_names import SPAN_REQUEST
from services.common.trace_store import AmbiguousTraceIdError, StoredSpan, read_trace

command = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False)

SHIPPING_S = 3 * FLUSH_INTERVAL_S
"""Each process writes its spans every flush interval, by its own clock: a trace is whole this long after its request
ended, also on a busy machine."""

POLL_S = 0.25


@command.command()
@reports_errors
def trace(  # noqa: PLR0913  (one parameter an option)
    id: Annotated[str, typer.Argument(metavar="ID", help="Trace id, its first six or more digits, or a request id.")],
    attributes: Annotated[bool, typer.Option("--attributes", "-a", help="Also every attribute and event.")] = False,
    blocks: Annotated[bool, typer.Option("--blocks", help="Also every block of speculation.")] = False,
    pipeline: Annotated[bool, typer.Option("--pipeline", "-p", help="Stages and time instead of the tree.")] = False,
    svg: Annotated[Path | None, typer.Option(help="Write the pipeline picture to this file.")] = None,
    steps: Annotated[
        str, typer.Option(metavar="FIRST:LAST", help="Only these steps of the picture, counted from 1.")
    ] = ":",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object: all spans, or the picture.")] = False,
    run_dir: Annotated[Path, typer.Option(help="The run folder of `forerun up`.")] = DEFAULT_RUN_DIR,
    traces_dir: Annotated[Path | None, typer.Option(help="Trace files elsewhere; default: the run folder's.")] = None,
) -> None:
    """Draw one request's trace: spans, durations, and when each ran; with --pipeline what each stage did step by step.

    Works while the system runs and after it has stopped, as long as the trace files are there.

    \b
    Examples:
      forerun trace 4bf92f3577b34da6
      forerun trace req-7 --attributes
      forerun trace 4bf92f --json | jq '.spans[].name'
      forerun trace 4bf92f --pipeline --steps 1:40
      forerun trace 4bf92f --svg pipeline.svg
    """
    run = RunDir(run_dir)
    folder = _traces_folder(run, traces_dir)
    spans = _read(folder, id, wait_s=SHIPPING_S if run.is_locked() else 0.0)
    if not spans:
        raise CliError(f"nothing is known of {id!r} in {folder}; it was not sampled, or is older than the files", 1)
    if pipeline or svg is not None:
        _show_pipeline(_picture(spans, steps), svg, as_json=as_json)
        return
    if as_json:
        typer.echo(json.dumps({"trace_id": spans[0].trace_id, "spans": [asdict(span) for span in spans]}))
        return
    console = output_console()
    console.print(render_trace(spans, console.width, attributes=attributes, blocks=blocks), soft_wrap=True)


def _show_pipeline(picture: Picture, svg: Path | None, *, as_json: bool) -> None:
    if svg is not None:
        try:
            svg.write_text(write_svg(picture), encoding="utf-8")
        except OSError as error:
            raise CliError(f"--svg {svg}: {error.strerror}") from error
        typer.echo(f"wrote {svg}", err=True)
    if as_json:
        typer.echo(json.dumps(asdict(picture)))
    elif svg is None:
        console = output_console()
        console.print(render_picture(picture, console.width), soft_wrap=True)


def _picture(spans: list[StoredSpan], steps: str) -> Picture:
    first, colon, last = steps.partition(":")
    try:
        begin, end = int(first or 1), int(last) if last else None
    except ValueError:
        colon = ""
    if not colon:
        raise CliError(f"--steps {steps}: must be FIRST:LAST, two step numbers of which one may be left out")
    try:
        picture = picture_of(spans)
        return picture if steps == ":" else picture.of_steps(begin, end)
    except NoPictureError as error:
        raise CliError(str(error), EXIT_FAILED) from error


def _traces_folder(run: RunDir, chosen: Path | None) -> Path:
    if chosen is not None:
        return chosen
    if not run.is_locked():
        return run.traces
    state = run.read_state()
    if state.traces_dir is None:
        raise CliError(f"traces go to the collector at {state.otlp_endpoint}; look there", EXIT_FAILED)
    return state.traces_dir


def _read(folder: Path, id: str, wait_s: float) -> list[StoredSpan]:
    """Reads until the request ended ``wait_s`` ago; at most for ``wait_s``."""
    deadline = time.monotonic() + wait_s
    while True:
        # Before reading: what is written after it must not count as read.
        read_ns = time.time_ns()
        try:
            spans = read_trace(folder, id)
        except AmbiguousTraceIdError as error:
            raise CliError(str(error)) from error
        ended_ns = max((span.end_ns for span in spans if span.name == SPAN_REQUEST), default=read_ns)
        if read_ns - ended_ns >= wait_s * 1e9 or time.monotonic() > deadline:
            return spans
        time.sleep(POLL_S)
