"""``forerun certs``: certificates for a system without an authority of its own."""

import json
from pathlib import Path
from typing import Annotated

import typer

from services.cli.certificate_authority import CertificateAuthority, KeyPair
from services.cli.console import output_console
from services.cli.errors import CliError, reports_errors

command = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False)


@command.command()
@reports_errors
def certs(
    out: Annotated[Path, typer.Option(help="Folder of the authority and its certificates.")] = Path("certs"),
    name: Annotated[list[str] | None, typer.Option(help="Of a certificate; repeatable. Default: forerun.")] = None,
    host: Annotated[
        list[str] | None,
        typer.Option(help="DNS name or address that the certificates hold for, beside this machine's own; repeatable."),
    ] = None,
    days: Annotated[int, typer.Option(min=1, help="That the certificates hold.")] = 365,
    new_authority: Annotated[
        bool, typer.Option("--new-authority", help="Replace the authority; ca.pem trusts the old one, too.")
    ] = False,
    authority_only: Annotated[
        bool, typer.Option("--authority-only", help="Make no certificates yet: first bring ca.pem everywhere.")
    ] = False,
    forget_old: Annotated[
        bool, typer.Option("--forget-old", help="Trust the newest authority alone from now on.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object with the files.")] = False,
) -> None:
    """Make a certificate authority and the certificates that it signs, or renew them.

    The first call makes both; later ones make new certificates of the same authority. Processes read them when they
    start. Who has ca.key can impersonate every process: keep it off the machines that serve.

    \b
    Examples:
      forerun certs --host node-a.internal --host 10.0.0.5
      forerun certs --name router --name replica-0 --host node-a.internal
      forerun certs --new-authority --authority-only     # 1. bring ca.pem everywhere, restart
      forerun certs                                      # 2. new certificates everywhere, restart
      forerun certs --forget-old                         # 3. ca.pem without the old one everywhere, restart
    """
    if not out.joinpath("ca.key").exists() and out.joinpath("ca.pem").exists():
        raise CliError(f"{out} has ca.pem without ca.key; name a new folder with --out, or bring the key back")
    is_new = new_authority or not out.joinpath("ca.key").exists()
    authority = CertificateAuthority.create(out) if is_new else CertificateAuthority.load(out)
    if forget_old:
        authority.forget_others()
    hosts = ["localhost", "127.0.0.1", *(host or [])]
    made = [] if authority_only else [authority.issue(each, hosts, days) for each in name or ["forerun"]]
    if as_json:
        pairs = [{"cert_file": str(pair.cert_file), "key_file": str(pair.key_file)} for pair in made]
        typer.echo(json.dumps({"ca_file": str(authority.ca_file), "certificates": pairs}))
    else:
        _show(authority, made, is_new)


def _show(authority: CertificateAuthority, made: list[KeyPair], is_new: bool) -> None:
    console = output_console()
    what = "New authority" if is_new else "Authority"
    console.print(f"{what}: {authority.ca_file}, holds until {authority.not_valid_after:%Y-%m-%d}.", highlight=False)
    for pair in made:
        console.print(f"Certificate: {pair.cert_file}", highlight=False)
    if made:
        pair, ca = made[0], authority.ca_file
        server = f"{{cert_file: {pair.cert_file}, key_file: {pair.key_file}, ca_file: {ca}}}"
        console.print("\nFor a file of `forerun up`:", highlight=False)
        console.print(
            f"  tls:\n    server: {server}\n    client: {server}", highlight=False, markup=False, soft_wrap=True
        )
