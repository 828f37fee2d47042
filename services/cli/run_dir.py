"""The run folder: configurations, logs, traces and the state of the system that ``forerun up`` started last."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import ValidationError

from services.cli.errors import CliError
from services.cli.units import UnitKind
from services.common.config import ClientTlsConfig, ConfigModel
from services.common.ledger.config import LedgerConfig


class UnitState(ConfigModel):
    """One running process."""

    name: str
    kind: UnitKind
    replica_id: str | None
    pid: int
    address: str
    metrics: tuple[tuple[str, str], ...]
    """Name and host:port of its Prometheus pages, its own first."""
    log_file: Path


class RunState(ConfigModel):
    """What other commands need to know of a running system."""

    pid: int
    """Of ``forerun up``."""
    config_file: Path
    router_grpc: str
    router_http: str | None
    """With its scheme."""
    model_names: tuple[str, ...]
    traces_dir: Path | None
    otlp_endpoint: str | None
    ledger: LedgerConfig
    tls: ClientTlsConfig | None
    units: tuple[UnitState, ...]


class RunDir:
    """Paths inside a run folder, and who may use it."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.configs = self.path / "config"
        self.logs = self.path / "logs"
        self.traces = self.path / "traces"
        self._state_file = self.path / "state.json"
        self._lock_file = self.path / "lock"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Makes the folder this process's own while the context is open, and removes the state afterwards.

        Raises:
            CliError: another ``forerun up`` has it, or it cannot be written.
        """
        try:
            for folder in (self.path, self.configs, self.logs, self.traces):
                folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self._lock_file, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise CliError(f"{self.path}: {error.strerror}; choose another folder with --run-dir") from error
        with os.fdopen(descriptor, "r+") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                owner = lock.read().strip() or "unknown"
                raise CliError(
                    f"another `forerun up` (pid {owner}) uses {self.path}; stop it or choose another --run-dir"
                ) from None
            lock.truncate(0)
            lock.write(str(os.getpid()))
            lock.flush()
            try:
                yield
            finally:
                self._state_file.unlink(missing_ok=True)

    def log_file(self, unit_name: str) -> Path:
        """Where a process's output goes; several starts of it follow each other."""
        return self.logs / f"{unit_name}.log"

    def clear_logs(self) -> None:
        """Removes the logs of earlier runs."""
        for path in self.logs.glob("*.log"):
            path.unlink()

    def is_locked(self) -> bool:
        """Whether a ``forerun up`` runs in this folder now."""
        try:
            with self._lock_file.open("r") as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False

    def write_state(self, state: RunState) -> None:
        """Publishes the state in one step."""
        self.publish(self._state_file, state.model_dump_json(indent=2))

    def publish(self, path: Path, text: str) -> None:
        """Replaces a file as a whole, for readers that look at any time."""
        self.write_private(path.with_suffix(".new"), text)
        path.with_suffix(".new").replace(path)

    def read_state(self) -> RunState:
        """The state of the running system.

        Raises:
            CliError: nothing runs in this folder, or another version wrote it.
        """
        if not self.is_locked():
            raise CliError(f"nothing runs in {self.path}; start it with: forerun up")
        try:
            return RunState.model_validate_json(self._state_file.read_bytes())
        except FileNotFoundError:
            raise CliError(f"the system in {self.path} is still starting; try again when it is ready") from None
        except ValidationError as error:
            raise CliError(f"{self._state_file} was written by another version of Forerun: {error}") from error

    @staticmethod
    def write_private(path: Path, text: str) -> None:
        """Writes a file that only this user may read."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
