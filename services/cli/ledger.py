"""``forerun ledger``: what the KV ledger says, and whether it is true."""

import asyncio
import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError
from rich.table import Table

from services.cli.connection import RunDirOption
from services.cli.console import output_console
from services.cli.errors import EXIT_FAILED, CliError, reports_errors
from services.cli.paths import DEFAULT_RUN_DIR
from services.cli.replica_truth import read_truths
from services.cli.run_dir import RunDir
from services.common.ledger import Drift, LedgerConfig, LedgerRow, LedgerUnavailableError, check_ledger, read_ledger

command = typer.Typer(
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    no_args_is_help=True,
    help="Show the KV ledger, or check it against the engines.",
)

JsonOption = Annotated[bool, typer.Option("--json", help="One JSON array.")]


@command.command("show")
@reports_errors
def show(
    as_json: JsonOption = False,
    url: Annotated[str | None, typer.Option(help="Redis elsewhere, as redis://host:port/0.")] = None,
    password_file: Annotated[Path | None, typer.Option(help="With --url: file with its password.")] = None,
    fleet: Annotated[str, typer.Option(help="With --url: the fleet's name.")] = "default",
    run_dir: RunDirOption = DEFAULT_RUN_DIR,
) -> None:
    """Show each live replica's KV blocks, who holds them, and what routers have reserved.

    \b
    Examples:
      forerun ledger show
      forerun ledger show --url redis://10.0.0.5:6379/0 --json
    """
    config = _config(run_dir, url, password_file, fleet)
    try:
        rows = asyncio.run(read_ledger(config))
    except LedgerUnavailableError as error:
        raise CliError(str(error), EXIT_FAILED) from error
    if as_json:
        typer.echo(json.dumps([asdict(row) for row in rows]))
    else:
        output_console().print(_replica_table(rows))


@command.command("check")
@reports_errors
def check(
    as_json: JsonOption = False,
    wait_s: Annotated[float, typer.Option("--wait-s", min=0, help="A drift counts if it is still there after.")] = 2.0,
    run_dir: RunDirOption = DEFAULT_RUN_DIR,
) -> None:
    """Compare the ledger with what the engines of the system started here say; print every difference.

    Meant for a quiet system: while requests run, the two are read a moment apart and may differ.

    \b
    Examples:
      forerun ledger check
      forerun ledger check --json || echo "blocks leaked"

    Exit codes: 0 no difference, 1 some, or the ledger cannot be read.
    """
    try:
        drifts = asyncio.run(_check(RunDir(run_dir), wait_s))
    except LedgerUnavailableError as error:
        raise CliError(str(error), EXIT_FAILED) from error
    if as_json:
        typer.echo(json.dumps([asdict(drift) for drift in drifts]))
    else:
        for drift in drifts:
            typer.echo(str(drift))
        typer.echo(f"drift: {len(drifts)}")
    raise typer.Exit(EXIT_FAILED if drifts else 0)


async def _check(run: RunDir, wait_s: float) -> list[Drift]:
    state = run.read_state()
    return await check_ledger(state.ledger, await read_truths(state), wait_s)


def _config(run_dir: Path, url: str | None, password_file: Path | None, fleet: str) -> LedgerConfig:
    if url is None:
        return RunDir(run_dir).read_state().ledger
    try:
        return LedgerConfig(url=url, password_file=password_file, fleet=fleet)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in problem["loc"]) or "ledger"
        raise CliError(f"{field}: {problem['msg'].removeprefix('Value error, ')}") from error


def _replica_table(rows: list[LedgerRow]) -> Table:
    table = Table("REPLICA", "BLOCKS", "FREE", "HELD", "RESERVED", "RUNNING", "WAITING", "AGE", "HOLDERS", box=None)
    for row in rows:
        replica = row.replica
        numbers = (replica.total, replica.free, replica.held, replica.reserved, replica.running, replica.waiting)
        holders = ", ".join(f"{request}: {blocks}" for request, blocks in list(row.held_requests.items())[:8])
        table.add_row(
            replica.replica_id, *(str(number) for number in numbers), f"{replica.heartbeat_age_s:.1f} s", holders
        )
    if not rows:
        table.add_row("(no live replica)")
    return table
