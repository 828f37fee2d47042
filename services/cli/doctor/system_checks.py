"""What the file names beyond this machine: ports, model files, trained parts, Redis and its clock."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from services.cli.doctor.finding import Finding, failed, ok, warning
from services.cli.errors import CliError
from services.cli.local_config import LocalConfig
from services.cli.local_redis import find_redis_server
from services.cli.model_catalog import CATALOG
from services.cli.model_resolve import is_hugging_face_id
from services.cli.model_store import ModelStore
from services.cli.port_check import fixed_addresses
from services.cli.ports import who_listens
from services.common.errors import ConfigError
from services.common.ledger.config import LedgerConfig
from services.common.ledger.connection import LEDGER_ERRORS, connect, explain
from services.predictor.model_config import RemainingLengthConfig
from services.router.apex.route_net_config import RouteNetConfig
from services.scheduler.apex.depth_net_config import DepthNetConfig
from services.workers.draft_adapter.config import DraftAdapterConfig

SLOW_REDIS_S = 0.01
MOST_SKEW_S = 0.5
"""Leases and spans of several machines are compared by their clocks; Redis' is the one that they share."""


def check_ports(config: LocalConfig) -> Iterator[Finding]:
    """Every fixed port is free."""
    taken = []
    addresses = fixed_addresses(config)
    for location, address in addresses:
        field = ".".join(map(str, location))
        try:
            owner = who_listens(address)
        except OSError as error:
            taken.append(failed("ports", f"{field}: {address}: {error.strerror}", "name an address of this machine"))
            continue
        if owner is not None:
            taken.append(
                failed(
                    "ports",
                    f"{field}: {address} is taken by {owner}",
                    "stop it, or choose another port (0: a free one)",
                )
            )
    yield from taken or [ok("ports", f"{len(addresses)} free")]


def check_model(config: LocalConfig, store: ModelStore) -> tuple[Finding, int | None]:
    """The model's files, and the bytes of its weights where they are here. Fetches nothing."""
    name = config.model
    if not config.needs_model:
        return ok("model", "none is needed"), None
    folder = Path(name).expanduser()
    if name in CATALOG and not folder.is_dir():
        if not store.present(name):
            return warning("model", f"{name} is not in the cache", f"forerun models get {name}"), None
        folder = Path(store.path(name))
    elif is_hugging_face_id(name) and not folder.is_dir():
        return ok("model", f"{name}, which the engine fetches from Hugging Face"), None
    elif not folder.is_dir():
        return failed("model", f"{name} is no folder, known name or Hugging Face id", "forerun models list"), None
    return _files_of(folder)


def check_parts(config: LocalConfig) -> Iterator[Finding]:
    """Every trained part that the file names can be read."""
    for name, folder, read in _parts(config):
        try:
            read(folder)
        except ConfigError as error:
            yield failed(name, str(error), "train it, fetch it, or correct the path")
        else:
            yield ok(name, str(folder))


def check_redis(config: LocalConfig) -> Iterator[Finding]:
    """The ledger's server answers, soon enough and by a clock like this one's; or there is one to start."""
    if config.ledger.enabled:
        yield from _redis_answers(config.ledger)
    elif config.redis.start:
        try:
            yield ok("Redis", f"{find_redis_server(config.redis.executable)} will be started")
        except CliError as error:
            yield failed("Redis", str(error), "see there")
    else:
        yield warning("Redis", "none: requests are placed by each router's own view", "set ledger.url or redis.start")


def _files_of(folder: Path) -> tuple[Finding, int | None]:
    try:
        json.loads((folder / "config.json").read_text(encoding="utf-8"))
        index = folder / "model.safetensors.index.json"
        named = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()) if index.is_file() else set()
    except (OSError, ValueError, KeyError) as error:
        return failed("model", f"{folder}: {error}", "fetch the checkpoint again"), None
    if missing := sorted(name for name in named if not (folder / name).is_file()):
        return failed("model", f"{folder} lacks {missing[0]}", "fetch the checkpoint again"), None
    weights = [folder / name for name in named] or [*folder.glob("*.safetensors"), *folder.glob("*.bin")]
    if not weights:
        return failed("model", f"{folder} has no weights (*.safetensors)", "fetch the checkpoint again"), None
    size = sum(each.stat().st_size for each in weights)
    return ok("model", f"{folder}, {size / 2**20:,.0f} MiB of weights"), size


def _parts(config: LocalConfig) -> Iterator[tuple[str, Path, Callable[[Path], object]]]:
    if config.router.experts is not None:
        yield "route model", config.router.experts.model, RouteNetConfig.read
    for model in config.predictor.models if config.predictor is not None else ():
        yield "predictor", model, RemainingLengthConfig.read
    for replica in config.replicas:
        if replica.speculation is not None:
            yield "draft adapter", Path(replica.speculation.draft_adapter), DraftAdapterConfig.read
        if replica.experts is None:
            continue
        if replica.experts.depth_model is not None:
            yield "depth model", replica.experts.depth_model, DepthNetConfig.read
        drafter = replica.experts.drafter
        if drafter is not None and not (is_hugging_face_id(drafter.model) and not Path(drafter.model).is_dir()):
            yield "drafter", Path(drafter.model), _read_checkpoint


def _read_checkpoint(folder: Path) -> None:
    finding, size = _files_of(folder)
    if size is None:
        raise ConfigError(finding.found)


def _redis_answers(config: LedgerConfig) -> Iterator[Finding]:
    try:
        client: Any = connect(config)
        client.ping()
        began = time.monotonic()
        seconds, micros = client.time()
        took = time.monotonic() - began
    except LEDGER_ERRORS as error:
        yield failed("Redis", explain(error), "start it, or correct ledger.url, username, password_file and TLS files")
        return
    if took > SLOW_REDIS_S:
        yield warning(
            "Redis", f"answers after {1e3 * took:.1f} ms", "a Redis nearer to the routers, or one that is idle"
        )
    else:
        yield ok("Redis", f"answers after {1e3 * took:.1f} ms")
    skew = abs(time.time() - took / 2 - (seconds + micros / 1e6))
    if skew > MOST_SKEW_S:
        yield warning("clock", f"{skew:.1f} s beside that of Redis", "synchronise both machines (chrony, ntpd)")
    else:
        yield ok("clock", f"within {MOST_SKEW_S} s of that of Redis")
