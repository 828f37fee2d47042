"""``forerun version``."""

import json
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

import typer

from services.cli.errors import reports_errors
from services.common.version import FORERUN_VERSION, SESSION_PROTOCOL_VERSION, STAGE_PROTOCOL_VERSION, vllm_version

command = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False)

PACKAGES = ("torch", "transformers", "grpcio", "protobuf", "redis", "opentelemetry-sdk", "pydantic")


@command.command()
@reports_errors
def show_versions(
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Also the libraries below.")] = False,
) -> None:
    """Print the version of Forerun, of its wire contracts and of the engine.

    \b
    Examples:
      forerun version
      forerun version --verbose --json
    """
    versions: dict[str, str | int] = {
        "forerun": FORERUN_VERSION,
        "session_protocol": SESSION_PROTOCOL_VERSION,
        "stage_protocol": STAGE_PROTOCOL_VERSION,
        "vllm": vllm_version() or "not installed",
    }
    if verbose:
        versions["python"] = platform.python_version()
        versions |= {name: _version_of(name) for name in PACKAGES}
    if as_json:
        typer.echo(json.dumps(versions))
        return
    width = max(len(name) for name in versions)
    for name, value in versions.items():
        typer.echo(f"{name:<{width}}  {value}")


def _version_of(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "not installed"
