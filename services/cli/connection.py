"""How a command reaches a router: options, the environment, or the system that ``forerun up`` runs here."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from services.cli.errors import CliError
from services.cli.run_dir import RunDir
from services.common.config import ClientTlsConfig

API_KEY_VARIABLE = "FORERUN_API_KEY"

RouterOption = Annotated[
    str | None, typer.Option("--router", metavar="HOST:PORT", help="gRPC address; default: the system started here.")
]
RunDirOption = Annotated[Path, typer.Option("--run-dir", help="The run folder of `forerun up`.")]
ApiKeyOption = Annotated[
    str | None, typer.Option("--api-key", help=f"Where the router asks for one; default: ${API_KEY_VARIABLE}.")
]
CaFileOption = Annotated[Path | None, typer.Option("--ca-file", help="PEM file: connect by TLS, trusting it.")]
CertFileOption = Annotated[Path | None, typer.Option("--cert-file", help="PEM certificate of this client.")]
KeyFileOption = Annotated[Path | None, typer.Option("--key-file", help="PEM private key of this client.")]


@dataclass(frozen=True, slots=True)
class Connection:
    """A router and how to reach it."""

    address: str
    tls: ClientTlsConfig | None
    api_key: str | None

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What every call carries."""
        return (("authorization", f"Bearer {self.api_key}"),) if self.api_key else ()


def connect_to(
    router: str | None,
    run: RunDir,
    api_key: str | None,
    ca_file: Path | None,
    cert_file: Path | None,
    key_file: Path | None,
) -> Connection:
    """The connection that the options name; without ``router``, to the system that runs in ``run``.

    Raises:
        CliError: the options contradict each other, or nothing runs there.
    """
    key = api_key or os.environ.get(API_KEY_VARIABLE) or None
    tls = tls_of(ca_file, cert_file, key_file)
    if router is not None:
        return Connection(router, tls, key)
    state = run.read_state()
    return Connection(state.router_grpc, tls or state.tls, key)


def tls_of(ca_file: Path | None, cert_file: Path | None, key_file: Path | None) -> ClientTlsConfig | None:
    """What the three options name. Raises ``CliError`` when they do not belong together."""
    if ca_file is None:
        if cert_file or key_file:
            raise CliError("--cert-file and --key-file need --ca-file")
        return None
    try:
        return ClientTlsConfig(ca_file=ca_file, cert_file=cert_file, key_file=key_file)
    except ValidationError as error:
        raise CliError(error.errors()[0]["msg"].removeprefix("Value error, ")) from error
