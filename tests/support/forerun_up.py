"""``forerun up`` as a child process of a test, and proof that it leaves nothing behind."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

FORERUN = (sys.executable, "-m", "services.cli")
READY_TIMEOUT_S = 90.0
END_TIMEOUT_S = 60.0


class ForerunUp:
    """Started by the constructor, in a run folder of its own; use as a context manager."""

    def __init__(self, folder: Path, config: Path, *arguments: str) -> None:
        self.run_dir = folder / "run"
        self.log = folder / "up.log"
        command = [*FORERUN, "up", "--file", str(config), "--run-dir", str(self.run_dir), *arguments]
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
        self._seen: set[psutil.Process] = set()

    def __enter__(self) -> "ForerunUp":
        return self

    def __exit__(self, *_: object) -> None:
        self.note_processes()
        for process in (psutil.Process(self._process.pid), *self._seen) if self._process.poll() is None else self._seen:
            if is_alive(process):
                process.kill()
        self._process.wait(END_TIMEOUT_S)

    @property
    def output(self) -> str:
        """All it has written so far."""
        return self.log.read_text()

    @property
    def state(self) -> dict[str, Any]:
        """What it told other commands."""
        return json.loads((self.run_dir / "state.json").read_text())  # type: ignore[no-any-return]

    def wait_ready(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Until everything is ready."""
        self.wait_for_output("logs  ", timeout_s)
        self.note_processes()

    def wait_for_output(self, text: str, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Until it has written ``text``."""
        deadline = time.monotonic() + timeout_s
        while text not in self.output:
            assert self._process.poll() is None, f"it ended:\n{self.output}"
            assert time.monotonic() < deadline, f"{text!r} did not come:\n{self.output}"
            time.sleep(0.05)

    def pid_of(self, name: str) -> int:
        """Of one of its processes."""
        return int(next(unit["pid"] for unit in self.state["units"] if unit["name"] == name))

    def signal(self, number: signal.Signals) -> None:
        """To ``forerun up`` alone, as ``kill`` does."""
        self.note_processes()
        os.kill(self._process.pid, number)

    def wait_end(self, timeout_s: float = END_TIMEOUT_S) -> int:
        """Its exit code."""
        return self._process.wait(timeout_s)

    def note_processes(self) -> None:
        """Remembers all processes that it has now, children of children too."""
        try:
            self._seen.update(psutil.Process(self._process.pid).children(recursive=True))
        except psutil.NoSuchProcess:
            return

    def left_behind(self, timeout_s: float = 10.0) -> list[str]:
        """Processes it ever had, as far as noted, that live on after ``timeout_s``."""
        deadline = time.monotonic() + timeout_s
        while alive := [process for process in self._seen if is_alive(process)]:
            if time.monotonic() > deadline:
                return [" ".join(process.cmdline()) for process in alive]
            time.sleep(0.05)
        return []


def is_alive(process: psutil.Process) -> bool:
    """Zombies are dead: whoever inherits them has not looked yet."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def forerun(*arguments: str, timeout_s: float = 60.0) -> subprocess.CompletedProcess[str]:
    """One command to its end."""
    return subprocess.run(
        [*FORERUN, *arguments], capture_output=True, text=True, timeout=timeout_s, check=False, stdin=subprocess.DEVNULL
    )
