"""Draws the progress of training on stderr: a bar on a terminal, a line now and then elsewhere."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from services.common.training.progress import Listener

LINE_INTERVAL_S = 30.0


@contextmanager
def train_progress(console: Console | None = None) -> Iterator[Listener]:
    """A listener that draws while the context is open."""
    console = console or Console(stderr=True)
    if console.is_terminal:
        with _bars(console) as progress:
            yield _BarListener(progress)
    else:
        yield _LineListener(console)


def _bars(console: Console) -> Progress:
    columns = (MofNCompleteColumn(), TextColumn("{task.fields[note]}"), TimeElapsedColumn(), TimeRemainingColumn())
    return Progress(TextColumn("{task.description}"), BarColumn(), *columns, console=console)


class _BarListener:
    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("", total=None, note="")

    def step(self, name: str, total: int | None = None) -> None:
        self._progress.reset(self._task, description=name, total=total, note="")

    def reach(self, done: int, note: str) -> None:
        self._progress.update(self._task, completed=done, note=note)


class _LineListener:
    def __init__(self, console: Console) -> None:
        self._console = console
        self._name = ""
        self._total: int | None = None
        self._next_line = 0.0

    def step(self, name: str, total: int | None = None) -> None:
        self._name, self._total = name, total
        self._console.print(name, highlight=False)

    def reach(self, done: int, note: str) -> None:
        if time.monotonic() >= self._next_line or done == self._total:
            self._next_line = time.monotonic() + LINE_INTERVAL_S
            self._console.print(f"{self._name}: {done:,} of {self._total or 0:,} {note}", highlight=False)
