"""``forerun profile``: what ``forerun plan`` needs to know of a model on the devices that are here."""

import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from services.cli.console import output_console
from services.cli.errors import CliError, reports_errors
from services.cli.local_config import LocalConfig
from services.cli.model_progress import store_progress
from services.cli.model_resolve import resolve_model
from services.cli.model_store import ModelStore
from services.cli.paths import cache_dir
from services.cli.profile_splits import Adapter, Target, check_adapters, read_adapters, splits_to_measure
from services.cli.profiler import Profiler, Schedule
from services.cli.train_progress import train_progress
from services.cli.up import DEFAULT_FILE, engine_is_cuda, existing
from services.common.config_file import load_config
from services.common.config_yaml import apply_override, read_yaml
from services.common.version import FORERUN_VERSION, vllm_version
from services.scheduler.sp_profile import Profile

command = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False)

DEFAULT_ROWS = (1, 2, 4, 8, 16, 32)
CPU_DEVICES = 2


@command.command()
@reports_errors
def profile(  # noqa: PLR0913  (one parameter an option)
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="As `forerun models list` names it, a folder, or an id.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The profile to write, JSON.")],
    adapter: Annotated[
        list[Path] | None, typer.Option(help="A draft adapter's folder, to measure SP with; repeatable.")
    ] = None,
    devices: Annotated[
        int | None, typer.Option(min=1, help="Devices to split over; default: the CUDA devices, on a CPU 2.")
    ] = None,
    layers: Annotated[
        list[str] | None, typer.Option(metavar="N,N", help="Layers of the stages of PP; repeatable. See below.")
    ] = None,
    rows: Annotated[list[int] | None, typer.Option(min=1, help="Rows of a step; repeatable. 1 to 32.")] = None,
    seconds: Annotated[float, typer.Option(min=0.1, help="Time of each measurement.")] = 2.0,
    rounds: Annotated[int, typer.Option(min=1, help="Measurements of each number of rows.")] = 1,
    context: Annotated[int, typer.Option(min=1, help="Tokens of a sequence, for how many the KV memory holds.")] = 1024,
    file: Annotated[Path, typer.Option("--file", "-f", help="Its first replica's settings are used.")] = DEFAULT_FILE,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="FIELD=VALUE", help="Override one of its fields; repeatable.")
    ] = None,
    cache: Annotated[
        Path | None, typer.Option("--cache-dir", help="Where models are kept; default: $FORERUN_CACHE.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the profile, too.")] = False,
) -> None:
    """Measure how long the stages of each split of a model take, for `forerun plan`.

    Starts the stages and the scheduler of one split after the other, lets 1 to 32 sequences decode on each, and reads
    the stages' own clocks. Splits: TP (on a CPU: one process whose threads share the cores), PP with micro-batches and
    as one batch, and SP where --adapter is given. The time from a stage to the next is part of it, and how often drafts
    are right. Nothing else should run meanwhile. Takes about a minute a split; Ctrl-C stops everything.

    \b
    Examples:
      forerun profile smollm2-135m -o profile.json && forerun plan profile.json
      forerun profile smollm2-135m -o profile.json --adapter models/smollm2-135m/adapter-15
      forerun profile smollm2-135m -o profile.json --layers 15,15 --layers 17,13 --rows 1 --rows 8
      forerun profile smollm2-135m -o profile.json --set replicas.0.engine_args.dtype=bfloat16

    Without --layers, PP is measured with an even split, and with the one that this says is balanced.
    """
    _check_out(out)
    base = _base(model, file, overrides or [])
    with store_progress(model) as stored:
        location = base["model"] = resolve_model(model, ModelStore(cache_dir(cache)), stored)
    target, adapters = _target(location, adapter or [])
    on = devices or _devices_here(on_cuda=target.on_cuda)
    partitions = [_partition(each) for each in layers or []]
    splits = splits_to_measure(on, target, adapters, partitions)
    with train_progress() as listen:
        profiler = Profiler(base, adapters, target, Schedule(_rows(rows), seconds, rounds), context, listen)
        measured = profiler.measure(splits, balance=not partitions)
    document = Profile(model=model, devices=on, origin=_origin(), splits=tuple(measured))
    out.write_text(document.model_dump_json(indent=2, exclude_defaults=True) + "\n", encoding="utf-8")
    if as_json:
        typer.echo(document.model_dump_json(exclude_defaults=True))
    else:
        output_console().print(f"{out}: {len(measured)} splits; now: forerun plan {out}", highlight=False)


def _base(model: str, file: Path, overrides: list[str]) -> dict[str, Any]:
    """The file's fields with the overrides, after a check of them."""
    load_config(existing(file), LocalConfig, [f"model={model}", *overrides])
    document = read_yaml(file)
    for override in overrides:
        apply_override(document, override)
    return document.data


def _target(location: str, folders: list[Path]) -> tuple[Target, list[Adapter]]:
    # Here, not above: it takes seconds to import, which --help should not.
    from transformers import AutoConfig  # noqa: PLC0415

    try:
        config = AutoConfig.from_pretrained(location)
    except (OSError, ValueError) as error:
        raise CliError(f"{location}: its configuration cannot be read: {error}") from error
    adapters = read_adapters(folders)
    check_adapters(adapters, config)
    return Target(config.num_hidden_layers, config.num_attention_heads, engine_is_cuda()), adapters


def _devices_here(*, on_cuda: bool) -> int:
    if not on_cuda:
        return CPU_DEVICES
    import torch  # noqa: PLC0415  (takes seconds)

    return int(torch.cuda.device_count())


def _rows(given: list[int] | None) -> tuple[int, ...]:
    rows = tuple(sorted(set(given or DEFAULT_ROWS)))
    if len(rows) < 2:
        raise CliError(f"--rows {rows[0]}: how time grows with rows needs two or more numbers; give --rows again")
    return rows


def _partition(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise CliError(f"--layers {text}: must be numbers of layers, as in 17,13") from None


def _check_out(out: Path) -> None:
    """Before minutes of measuring."""
    if out.is_dir() or not os.access(out.parent, os.W_OK):
        raise CliError(f"--out {out}: cannot be written; name a file in a folder that can")


def _origin() -> str:
    when = datetime.now(UTC).isoformat(timespec="minutes")
    cores = len(os.sched_getaffinity(0))
    versions = f"forerun {FORERUN_VERSION}, vLLM {vllm_version()}"
    return f"forerun profile on {platform.node()}, {cores} cores, {when}; {versions}"
