"""Draws the progress of the model store on stderr: a bar on a terminal, one line a step elsewhere."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn, TransferSpeedColumn

from services.cli.model_store import Listener, StoreProgress


@contextmanager
def store_progress(name: str, console: Console | None = None) -> Iterator[Listener]:
    """A listener for ``ModelStore`` that draws while the context is open."""
    console = console or Console(stderr=True)
    if console.is_terminal:
        with _bars(console) as progress:
            yield _BarListener(name, progress).on_progress
    else:
        yield _LineListener(name, console).on_progress


def _bars(console: Console) -> Progress:
    columns = (DownloadColumn(), TransferSpeedColumn(), TimeElapsedColumn())
    return Progress(TextColumn("{task.description}"), BarColumn(), *columns, console=console)


class _BarListener:
    def __init__(self, name: str, progress: Progress) -> None:
        self._name = name
        self._progress = progress
        self._step = ""
        self._task = progress.add_task(name, total=None)

    def on_progress(self, event: StoreProgress) -> None:
        if event.step != self._step:
            self._step = event.step
            self._progress.reset(self._task, total=event.total_bytes, description=f"{self._name}: {event.step}")
        self._progress.update(self._task, completed=event.done_bytes)


class _LineListener:
    def __init__(self, name: str, console: Console) -> None:
        self._name = name
        self._console = console
        self._step = ""

    def on_progress(self, event: StoreProgress) -> None:
        if event.step != self._step:
            self._step = event.step
            self._console.print(f"{self._name}: {event.step}", highlight=False)
