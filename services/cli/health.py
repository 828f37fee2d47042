"""``forerun health``: one server's answer in ``grpc.health.v1``, for health checks of containers and scripts."""

import asyncio
from typing import Annotated

import typer

from services.cli.connection import CaFileOption, CertFileOption, KeyFileOption, tls_of
from services.cli.errors import CliError, reports_errors
from services.cli.readiness import SERVING, health_of
from services.common.address import split_address

command = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False)


@command.command()
@reports_errors
def health(
    address: Annotated[str, typer.Argument(metavar="HOST:PORT", help="Of any Forerun gRPC server.")],
    service: Annotated[
        str,
        typer.Option(help="One service's; default: the process's. A router's says whether a replica serves."),
    ] = "",
    ca_file: CaFileOption = None,
    cert_file: CertFileOption = None,
    key_file: KeyFileOption = None,
) -> None:
    """Ask a server for its health: prints it and exits with 0 when it is SERVING, else with 1.

    \b
    Examples:
      forerun health 127.0.0.1:50051
      forerun health 127.0.0.1:50051 --service forerun.inference.v1.InferenceService
      forerun health 127.0.0.1:50071 --ca-file ca.pem --cert-file forerun.pem --key-file forerun.key
    """
    try:
        split_address(address)
    except ValueError as error:
        raise CliError(f"HOST:PORT: {error}") from None
    answer = asyncio.run(health_of(address, tls_of(ca_file, cert_file, key_file), service))
    typer.echo(answer)
    raise typer.Exit(0 if answer == SERVING else 1)
