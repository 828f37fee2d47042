"""``forerun doctor``: looks at everything that a start depends on, and starts nothing."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from services.cli.console import output_console
from services.cli.doctor.finding import Finding, Level
from services.cli.doctor.machine_checks import machine_checks
from services.cli.doctor.system_checks import check_model, check_parts, check_ports, check_redis
from services.cli.errors import EXIT_FAILED, reports_errors
from services.cli.local_config import LocalConfig
from services.cli.model_store import ModelStore
from services.cli.paths import DEFAULT_RUN_DIR, cache_dir
from services.cli.up import DEFAULT_FILE, existing
from services.common.config_file import load_config

command = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False)

STYLES = {Level.OK: "green", Level.WARNING: "yellow", Level.FAILED: "red"}


@command.command()
@reports_errors
def doctor(
    file: Annotated[Path, typer.Option("--file", "-f", help="What would be started.")] = DEFAULT_FILE,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE", help="Override one field of the file; repeatable."),
    ] = None,
    run_dir: Annotated[Path, typer.Option(help="Where logs and traces would go.")] = DEFAULT_RUN_DIR,
    cache: Annotated[
        Path | None, typer.Option("--cache-dir", help="Where models are kept; default: $FORERUN_CACHE.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line for each finding.")] = False,
) -> None:
    """Check what would keep a system from starting or from running well, and say how to put it right.

    Looks at the engine's version, ports, the model's files, trained parts, Redis and its clock, cores, memory, shared
    memory, open files, disk and GPUs. Starts and fetches nothing.

    \b
    Examples:
      forerun doctor
      forerun doctor -f deploy/local.yaml --set ledger.url=redis://10.0.0.5:6379/0
      forerun doctor --json | jq 'select(.level != "ok")'

    Exit codes: 0 nothing failed (there may be warnings), 1 something did, 2 the file is wrong.
    """
    config = load_config(existing(file), LocalConfig, overrides or ())
    findings = look(config, run_dir, ModelStore(cache_dir(cache)))
    if as_json:
        for each in findings:
            typer.echo(json.dumps(asdict(each)))
    else:
        _show(findings)
    if any(each.level is Level.FAILED for each in findings):
        raise typer.Exit(EXIT_FAILED)


def look(config: LocalConfig, run_dir: Path, store: ModelStore) -> list[Finding]:
    """All findings, in the order in which people would put them right."""
    model, model_bytes = check_model(config, store)
    return [
        *machine_checks(config, model_bytes, run_dir),
        model,
        *check_parts(config),
        *check_ports(config),
        *check_redis(config),
    ]


def _show(findings: list[Finding]) -> None:
    table = Table("", "CHECK", "FOUND", box=None, pad_edge=False)
    for each in findings:
        found = Text(each.found)
        if each.fix:
            found.append(f"\n→ {each.fix}", style="bold")
        table.add_row(Text(each.level.value, style=STYLES[each.level]), each.check, found)
    console = output_console()
    console.print(table)
    count = {level: sum(each.level is level for each in findings) for level in Level}
    console.print(
        f"{count[Level.OK]} ok, {count[Level.WARNING]} warnings, {count[Level.FAILED]} failed", highlight=False
    )
