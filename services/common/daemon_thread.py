"""Blocking work beside the event loop that must not keep the process from ending.

Threads of asyncio's own pool are joined at exit, however long they take; these are not.
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

T = TypeVar("T")
V = TypeVar("V")


class Promise(Generic[T]):
    """A result that a thread hands to an event loop, which may have ended in the meantime."""

    def __init__(self) -> None:
        """Call on the event loop that will wait."""
        self._loop = asyncio.get_running_loop()
        self._future: asyncio.Future[T] = self._loop.create_future()
        # An error that nobody waits for any more is no news.
        self._future.add_done_callback(lambda future: future.cancelled() or future.exception())

    def keep(self, result: T) -> None:
        """The result; call from the thread."""
        self._call(self._future.set_result, result)

    def fail(self, error: Exception) -> None:
        """The exception; call from the thread."""
        self._call(self._future.set_exception, error)

    async def wait(self) -> T:
        """The result, or raises the exception. Cancelling the wait does not touch the thread."""
        return await asyncio.shield(self._future)

    def _call(self, action: Callable[[V], None], value: V) -> None:
        def act() -> None:
            if not self._future.done():
                action(value)

        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(act)


async def in_thread(work: Callable[[], T]) -> T:
    """``work()`` in a daemon thread."""
    promise: Promise[T] = Promise()

    def run() -> None:
        try:
            promise.keep(work())
        except Exception as error:  # noqa: BLE001  (handed to the waiter)
            promise.fail(error)

    threading.Thread(target=run, daemon=True).start()
    return await promise.wait()
