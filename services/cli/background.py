"""A whole system in the background of a Python program: what the benchmarks and the end-to-end tests run against."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from services.cli.errors import CliError
from services.cli.run_dir import RunDir, RunState, UnitState
from services.cli.units import UnitKind

_POLL_S = 0.1


class BackgroundSystemError(RuntimeError):
    """``forerun up`` ended before the system was ready; the message holds the end of its output."""


class BackgroundSystem:
    """``forerun up`` as a child process, with a configuration given as a mapping. A context manager.

    The child dies with this process, and its own processes with it.
    """

    def __init__(self, config: Mapping[str, Any], folder: Path | None = None, ready_timeout_s: float = 300.0) -> None:
        """``folder`` holds configuration, logs and traces; None: a temporary one, removed at the end."""
        self._temporary = tempfile.TemporaryDirectory(prefix="forerun-") if folder is None else None
        self.folder = Path(self._temporary.name) if self._temporary else Path(folder or ".")
        self._config = config
        self._ready_timeout_s = ready_timeout_s
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def state(self) -> RunState:
        """Addresses, process ids and log files of everything that runs now.

        Raises:
            CliError: the system is not running.
        """
        return RunDir(self.run_dir).read_state()

    @property
    def output(self) -> str:
        """What ``forerun up`` has printed so far."""
        return (self.folder / "up.log").read_text(errors="replace")

    @property
    def exit_code(self) -> int | None:
        """Of ``forerun up``; None while it runs."""
        return self._process.poll() if self._process else None

    def start(self) -> None:
        """Returns when everything is ready. Raises ``BackgroundSystemError``."""
        self.folder.mkdir(parents=True, exist_ok=True)
        config_file = self.folder / "local.yaml"
        config_file.write_text(json.dumps(self._config, indent=2))
        command = [sys.executable, "-m", "services.cli.child", str(os.getpid())]
        command += [sys.executable, "-m", "services.cli", "up", "-f", str(config_file), "--run-dir", str(self.run_dir)]
        with (self.folder / "up.log").open("wb") as log:
            # A session of its own, so that a Ctrl-C meant for this program drains the system through stop() only.
            self._process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        self._wait_until_ready()

    def stop(self, timeout_s: float = 90.0) -> int:
        """Ctrl-C, then the exit code of ``forerun up``. Safe to call twice."""
        process = self._process
        if process is None:
            return 0
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._process = None
        if self._temporary is not None:
            self._temporary.cleanup()
        return process.returncode

    def unit(self, name: str) -> UnitState:
        """A process by its name, for example "replica-0.stage-1" or "router". Raises ``LookupError``."""
        for unit in self.state.units:
            if unit.name == name:
                return unit
        raise LookupError(f"no process {name!r} among {[unit.name for unit in self.state.units]}")

    def units(self, kind: UnitKind) -> list[UnitState]:
        """All processes of one kind, in order of their start."""
        return [unit for unit in self.state.units if unit.kind is kind]

    @property
    def run_dir(self) -> Path:
        """Where ``forerun up`` keeps its files."""
        return self.folder / "run"

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + self._ready_timeout_s
        while time.monotonic() < deadline:
            if self.exit_code is not None:
                raise BackgroundSystemError(f"`forerun up` ended with {self.exit_code}:\n{self.output[-4000:]}")
            if self._is_ready():
                return
            time.sleep(_POLL_S)
        self.stop()
        raise BackgroundSystemError(f"not ready within {self._ready_timeout_s:g} s:\n{self.output[-4000:]}")

    def _is_ready(self) -> bool:
        try:
            return bool(self.state.units)
        except CliError:
            return False
