"""``forerun up``: a whole system on this machine, until Ctrl-C."""

import asyncio
import os
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated

import typer

from services.cli.console import output_console
from services.cli.demonstration import Demonstration
from services.cli.errors import CliError, reports_errors
from services.cli.launch_plan import Machine, plan_launch
from services.cli.local_config import LocalConfig
from services.cli.model_progress import store_progress
from services.cli.model_resolve import resolve_model
from services.cli.model_store import ModelStore
from services.cli.paths import DEFAULT_RUN_DIR, cache_dir
from services.cli.port_check import check_ports
from services.cli.ports import PortPicker
from services.cli.run_dir import RunDir
from services.cli.supervisor import Policy
from services.cli.system_run import SystemRun
from services.cli.up_display import LineDisplay, LiveDisplay, address_table
from services.common.config_file import load_config
from services.common.config_yaml import YamlDocument, read_yaml

command = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False)

DEFAULT_FILE = Path("deploy/local.yaml")


@command.command()
@reports_errors
def up(
    file: Annotated[Path, typer.Option("--file", "-f", help="What to start; every field is explained there.")] = (
        DEFAULT_FILE
    ),
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE", help="Override one field of the file; repeatable."),
    ] = None,
    run_dir: Annotated[Path, typer.Option(help="Where logs, traces and state go.")] = DEFAULT_RUN_DIR,
    cache: Annotated[
        Path | None, typer.Option("--cache-dir", help="Where models are kept; default: $FORERUN_CACHE.")
    ] = None,
    prompt: Annotated[str | None, typer.Option(help="When everything is ready, answer this prompt.")] = None,
    leave: Annotated[bool, typer.Option("--exit", help="With --prompt: stop after the answer.")] = False,
    check: Annotated[bool, typer.Option("--check", help="Check the file and the ports, start nothing.")] = False,
) -> None:
    """Start Redis, stages, schedulers and the router; serve until Ctrl-C.

    Shows what starts, then where the APIs, metrics, traces and logs are. Ctrl-C lets requests in flight finish and
    stops everything; a second one stops at once. No process is left behind, even when this one is killed. A process
    that dies is reported with the end of its log; whether it is started again is the file's choice (restart).

    \b
    Examples:
      forerun up
      forerun up -f deploy/local.yaml --set router.http_listen=127.0.0.1:8080
      forerun up --set model=Qwen/Qwen3-0.6B --set replicas.0.pipeline_stages=1
      forerun up --prompt "Why is the sky blue?" --exit
      forerun up --check

    \b
    Exit codes: 0 stopped as asked, 1 something failed, 2 the file is wrong, 130 stopped while starting.
    """
    if leave and prompt is None:
        raise CliError("--exit needs --prompt; without one, Ctrl-C stops the system")
    config = load_config(existing(file), LocalConfig, overrides or ())
    run = RunDir(run_dir)
    document = read_yaml(file)
    with run.locked():
        check_ports(config, document)
        if check:
            plan_launch(config, document, _machine(config.model), run, PortPicker())
            typer.echo(f"{file}: all right")
            return
        code = _run(config, document, run, cache, Demonstration(prompt, leave, run_dir))
    raise typer.Exit(code)


def _run(
    config: LocalConfig, document: YamlDocument, run: RunDir, cache: Path | None, demonstration: Demonstration
) -> int:
    console = output_console()
    model = config.model
    if config.needs_model:
        with store_progress(config.model) as listen:
            model = resolve_model(config.model, ModelStore(cache_dir(cache)), listen)
    run.clear_logs()
    ports = PortPicker()
    plan = plan_launch(config, document, _machine(model), run, ports)
    display = LiveDisplay(console, plan.units) if console.is_terminal else LineDisplay(console)
    policy = Policy(config.restart == "replica", config.max_restarts, config.start_timeout_s)

    async def when_ready() -> int | None:
        display.close()
        console.print()
        console.print(address_table(plan, run.logs))
        return await demonstration.run(plan, config, console)

    ports.release()
    try:
        return asyncio.run(SystemRun(plan, run, policy, display, document.path).run(when_ready))
    finally:
        display.close()


def _machine(model: str) -> Machine:
    return Machine(model, tuple(sorted(os.sched_getaffinity(0))), engine_is_cuda())


def existing(file: Path) -> Path:
    """``file``. Raises ``CliError`` when there is none."""
    if not file.exists():
        raise CliError(f"{file} does not exist; name the file to start with -f (the default is {DEFAULT_FILE})")
    return file


def engine_is_cuda() -> bool:
    """Whether the installed engine is the CUDA one; the CPU one is another distribution under the same import name."""
    try:
        version("vllm")
    except PackageNotFoundError:
        return False
    return True
