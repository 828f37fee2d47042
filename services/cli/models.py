"""``forerun models``: fetch and list models."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from services.cli.console import output_console
from services.cli.errors import EXIT_FAILED, CliError, reports_errors
from services.cli.model_catalog import CATALOG
from services.cli.model_progress import store_progress
from services.cli.model_resolve import is_hugging_face_id, resolve_model
from services.cli.model_store import ModelStore
from services.cli.paths import cache_dir

command = typer.Typer(
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    no_args_is_help=True,
    help="Fetch and list models.",
)

CacheOption = Annotated[
    Path | None, typer.Option("--cache-dir", help="Default: $FORERUN_CACHE, else forerun in your cache folder.")
]


@command.command("get")
@reports_errors
def get_model(
    name: Annotated[str, typer.Argument(help="A name that `forerun models list` shows, a Hugging Face id, or a path.")],
    cache: CacheOption = None,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit of a Hugging Face id.")] = None,
) -> None:
    """Fetch a model into the cache, verify it, and print where it is.

    A second call verifies checksums and downloads nothing. An interrupted call goes on where its last whole step ended.

    \b
    Examples:
      forerun models get smollm2-135m
      forerun models get Qwen/Qwen3-0.6B
    """
    store = ModelStore(cache_dir(cache))
    if name in CATALOG:
        with store_progress(name) as listen:
            location = str(store.get(name, listen))
    elif not Path(name).is_dir() and is_hugging_face_id(name):
        location = _download_snapshot(name, revision)
    else:
        with store_progress(name) as listen:
            location = resolve_model(name, store, listen)
    typer.echo(location)


@command.command("list")
@reports_errors
def list_models(
    cache: CacheOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON array.")] = False,
) -> None:
    """List the models that have a short name, and whether they are in the cache.

    \b
    Examples:
      forerun models list
      forerun models list --json
    """
    store = ModelStore(cache_dir(cache))
    rows = [
        {
            "name": model.name,
            "summary": model.summary,
            "license": model.license,
            "path": str(store.path(model.name)) if store.present(model.name) else None,
        }
        for model in CATALOG.values()
    ]
    if as_json:
        typer.echo(json.dumps(rows))
        return
    table = Table("NAME", "WHAT", "LICENSE", "IN THE CACHE", box=None)
    for row in rows:
        where = row["path"] or f"no: forerun models get {row['name']}"
        table.add_row(row["name"], row["summary"], row["license"], where)
    output_console().print(table)


def _download_snapshot(name: str, revision: str | None) -> str:
    from huggingface_hub import snapshot_download  # noqa: PLC0415  (slow to import, needed here only)
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError  # noqa: PLC0415

    try:
        return snapshot_download(name, revision=revision)
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        raise CliError(f"could not fetch {name} from Hugging Face: {reason}", EXIT_FAILED) from error
