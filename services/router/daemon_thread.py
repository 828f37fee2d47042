"""Blocking work that may take long and must not hold up the process's end."""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def run_in_daemon_thread(function: Callable[[], T], name: str) -> T:
    """``function()`` in its own thread. Cancelling gives up the wait; the thread goes on, and ends with the process."""
    loop = asyncio.get_running_loop()
    result: asyncio.Future[T] = loop.create_future()

    def work() -> None:
        try:
            value = function()
        except Exception as error:  # noqa: BLE001  (handed to who waits)
            _tell(result.set_exception, error)
        else:
            _tell(result.set_result, value)

    def _tell(setter: Callable[..., None], value: object) -> None:
        def deliver() -> None:
            if not result.done():
                setter(value)

        # The loop is closed when the process is ending: nobody waits any more.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(deliver)

    threading.Thread(target=work, name=name, daemon=True).start()
    return await result
