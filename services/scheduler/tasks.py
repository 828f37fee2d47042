"""Ending background tasks for sure."""

import asyncio
from collections.abc import Iterable

import structlog

_RETRY_S = 0.1
_TRIES = 20

_log = structlog.get_logger(__name__)


async def end_tasks(tasks: Iterable["asyncio.Task[object]"]) -> None:
    """Cancels the tasks and waits until they are done, within two seconds; logs what they failed with.

    Cancels more than once: Python 3.11's ``asyncio.wait_for`` swallows a cancellation that comes as its wait ends.
    """
    pending = set(tasks)
    for _ in range(_TRIES):
        if not pending:
            return
        for task in pending:
            task.cancel()
        done, pending = await asyncio.wait(pending, timeout=_RETRY_S)
        for task in done:
            if not task.cancelled() and (error := task.exception()) is not None:
                _log.error("a background task failed", task=task.get_name(), exc_info=error)
    if pending:
        _log.error("background tasks do not end", tasks=sorted(task.get_name() for task in pending))
