"""``forerun status``: what runs and whether it is well."""

import asyncio
import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from services.cli.connection import (
    ApiKeyOption,
    CaFileOption,
    CertFileOption,
    Connection,
    KeyFileOption,
    RouterOption,
    RunDirOption,
    connect_to,
)
from services.cli.console import output_console
from services.cli.errors import EXIT_FAILED, reports_errors
from services.cli.observe import RouterView, UnitView, view_router, view_unit
from services.cli.paths import DEFAULT_RUN_DIR
from services.cli.readiness import SERVING
from services.cli.run_dir import RunDir, RunState

command = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False)

STATE_STYLES = {SERVING: "green", "serving": "green", "draining": "yellow", "stalled": "yellow"}


@command.command()
@reports_errors
def status(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
    router: RouterOption = None,
    api_key: ApiKeyOption = None,
    ca_file: CaFileOption = None,
    cert_file: CertFileOption = None,
    key_file: KeyFileOption = None,
    run_dir: RunDirOption = DEFAULT_RUN_DIR,
) -> None:
    """Show every process's health and every replica's load, as the router sees it.

    With --router only what that router sees, wherever it is.

    \b
    Examples:
      forerun status
      forerun status --json | jq .replicas
      forerun status --router 10.0.0.5:50051 --ca-file ca.pem

    Exit codes: 0 everything serves, 1 something does not.
    """
    run = RunDir(run_dir)
    state = run.read_state() if router is None else None
    connection = connect_to(router, run, api_key, ca_file, cert_file, key_file)
    units, view = asyncio.run(_look(state, connection))
    if as_json:
        typer.echo(json.dumps({"processes": [asdict(unit) for unit in units], **asdict(view)}))
    else:
        _show(units, view)
    raise typer.Exit(0 if view.is_well and all(unit.health == SERVING for unit in units) else EXIT_FAILED)


async def _look(state: RunState | None, connection: Connection) -> tuple[list[UnitView], RouterView]:
    questions = [] if state is None else [view_unit(unit, state.tls, state.ledger) for unit in state.units]
    view, units = await asyncio.gather(view_router(connection), asyncio.gather(*questions))
    return units, view


def _show(units: list[UnitView], view: RouterView) -> None:
    console = output_console()
    if units:
        table = Table("PROCESS", "HEALTH", "ADDRESS", "PID", "MEMORY", "", box=None)
        for unit in units:
            memory = f"{unit.memory_bytes / 2**20:.0f} MiB" if unit.memory_bytes else ""
            table.add_row(unit.name, _state(unit.health), unit.address, str(unit.pid), memory, unit.details)
        console.print(table)
        console.print()
    if view.problem:
        console.print(Text(f"router {view.address}: {view.problem}", "red"))
        return
    table = Table("REPLICA", "STATE", "KV BLOCKS IN USE", "RUNNING", "WAITING", "FROM HERE", "STAGES x TP", box=None)
    for replica in view.replicas:
        used = f"{replica.used_blocks} of {replica.total_blocks}"
        if replica.reserved_blocks:
            used += f", {replica.reserved_blocks} reserved"
        shape = f"{replica.pipeline_stages} x {replica.tensor_parallel_ranks}"
        numbers = (replica.running_requests, replica.waiting_requests, replica.in_flight_requests)
        table.add_row(replica.replica_id, _state(replica.state), used, *(str(number) for number in numbers), shape)
    console.print(table)
    if not view.ledger_reachable:
        console.print(Text("The router does not reach the KV ledger; it goes by its last view.", "yellow"))


def _state(text: str) -> Text:
    return Text(text, STATE_STYLES.get(text, "red"))
