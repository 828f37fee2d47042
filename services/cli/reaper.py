"""Kills what a killed ``forerun up`` leaves behind: ``python -m services.cli.reaper``, fed through a pipe.

``child.py`` ties direct children to the supervisor, but a child's own children (vLLM's engine core) are out of its
reach. Every child leads a process group, and this process knows the groups: lines ``+PGID`` and ``-PGID`` on standard
input. The end of input means that the supervisor is gone, however it went; then the remaining groups are killed.
"""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Iterable

CLOSE_TIMEOUT_S = 5.0


def kill_group(group: int) -> None:
    """SIGKILL to every process of the group; nothing when it has none."""
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return


def watch(lines: Iterable[str]) -> None:
    """Reads to the end, then kills the groups that were named and not taken back."""
    groups: set[int] = set()
    for line in lines:
        group = int(line[1:])
        if line.startswith("+"):
            groups.add(group)
        else:
            groups.discard(group)
    for group in groups:
        kill_group(group)


class Reaper:
    """The supervisor's end of the pipe."""

    def __init__(self) -> None:
        self._process: Process | None = None

    async def start(self) -> None:
        """Starts the process."""
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "services.cli.reaper", stdin=PIPE, stdout=DEVNULL, stderr=DEVNULL,
            start_new_session=True,
        )  # fmt: skip

    def add(self, group: int) -> None:
        """The group is to be killed should the supervisor die."""
        self._tell(f"+{group}\n")

    def discard(self, group: int) -> None:
        """The group is gone."""
        self._tell(f"-{group}\n")

    async def close(self) -> None:
        """Ends the process; groups that are still named are killed."""
        if self._process is None or self._process.stdin is None:
            return
        self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), CLOSE_TIMEOUT_S)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()

    def _tell(self, line: str) -> None:
        if self._process is None or self._process.stdin is None:
            raise RuntimeError("the reaper is not started")
        self._process.stdin.write(line.encode())


if __name__ == "__main__":
    # Only the end of input ends this process: a Ctrl-C or a stop of the whole system is the supervisor's business.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    watch(sys.stdin)
