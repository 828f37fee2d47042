"""One started process: its group, its log, its end."""

import asyncio
import json
import os
import signal
import sys
import time
from asyncio.subprocess import DEVNULL, STDOUT, Process
from contextlib import suppress
from pathlib import Path

from services.cli.reaper import Reaper, kill_group
from services.cli.units import Unit

TAIL_BYTES = 64 * 2**10


class ManagedProcess:
    """Life: ``start`` -> ``exited`` completes by itself, or after ``stop`` -> nothing of its group is left."""

    def __init__(self, unit: Unit, log_file: Path, reaper: Reaper) -> None:
        self.unit = unit
        self.log_file = log_file
        self._reaper = reaper
        self._process: Process | None = None
        self._exited: asyncio.Task[int] | None = None
        self._log_start = 0
        self._started_at = 0.0

    @property
    def pid(self) -> int:
        """The process, also its process group; 0 before ``start``."""
        return self._process.pid if self._process else 0

    @property
    def seconds(self) -> float:
        """Since the start."""
        return time.monotonic() - self._started_at

    @property
    def exited(self) -> asyncio.Task[int]:
        """Completes with the exit code (minus the signal's number) when the process and its group are gone."""
        if self._exited is None:
            raise RuntimeError(f"{self.unit.name} is not started")
        return self._exited

    async def start(self) -> None:
        """Starts the process in a session of its own, so that a terminal's Ctrl-C reaches only the supervisor."""
        self._started_at = time.monotonic()
        with self.log_file.open("ab") as log:
            self._log_start = log.tell()
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "services.cli.child", str(os.getpid()), *self.unit.command,
                stdin=DEVNULL, stdout=log, stderr=STDOUT, start_new_session=True,
                env=os.environ | {"PYTHONUNBUFFERED": "1"},
            )  # fmt: skip
        self._reaper.add(self._process.pid)
        self._exited = asyncio.create_task(self._wait(self._process))

    async def stop(self, grace_s: float) -> bool:
        """SIGTERM, and after ``grace_s`` SIGKILL to the group. Returns whether it went by itself."""
        if self._exited is None or self._process is None:
            return True
        if not self._exited.done():
            with suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(asyncio.shield(self._exited), grace_s)
        except TimeoutError:
            self.kill()
            await self._exited
            return False
        return True

    def kill(self) -> None:
        """SIGKILL to the group, at once."""
        if self._process is not None:
            kill_group(self._process.pid)

    def how_it_ended(self) -> str:
        """For people, once ``exited`` is done."""
        code = self.exited.result()
        if code < 0:
            return f"was killed by {signal.Signals(-code).name}"
        return f"ended with exit code {code}"

    def log_tail(self, lines: int = 12) -> list[str]:
        """The last lines that this start wrote, structured ones made readable."""
        with suppress(FileNotFoundError), self.log_file.open("rb") as log:
            end = log.seek(0, os.SEEK_END)
            log.seek(max(self._log_start, end - TAIL_BYTES))
            text = log.read().decode("utf-8", errors="replace")
            return [_readable(line) for line in text.splitlines() if line.strip()][-lines:]
        return []

    async def _wait(self, process: Process) -> int:
        code = await process.wait()
        # Its own children must not outlive it; after an orderly end there are none.
        kill_group(process.pid)
        self._reaper.discard(process.pid)
        return code


def _readable(line: str) -> str:
    try:
        record = json.loads(line)
        level, event = record["level"], record["event"]
    except (ValueError, KeyError, TypeError):
        return line.rstrip()
    error = str(record.get("exception") or record.get("error") or "").strip().splitlines()[-1:]
    return f"{level}: {event}" + "".join(f" ({part})" for part in error)
