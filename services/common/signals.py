"""SIGINT and SIGTERM as something to await; the second one ends the process at once."""

import asyncio
import os
import signal
import sys


class StopSignal:
    """Takes over SIGINT and SIGTERM from construction on, so that one during start-up is not lost.

    Construct inside a running event loop, in the main thread.
    """

    def __init__(self) -> None:
        self._received: asyncio.Future[signal.Signals] = asyncio.get_running_loop().create_future()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, self._on_signal, number)

    @property
    def is_received(self) -> bool:
        """Whether the process was told to stop."""
        return self._received.done()

    async def wait(self) -> signal.Signals:
        """The first signal, when it comes; any number of waiters."""
        return await asyncio.shield(self._received)

    def _on_signal(self, number: signal.Signals) -> None:
        if self._received.done():
            sys.stderr.flush()
            # Not sys.exit: whoever asks twice wants no clean-up that may hang.
            os._exit(128 + number)
        self._received.set_result(number)


async def run_until_signal() -> signal.Signals:
    """Waits for SIGINT or SIGTERM and returns it. The next one ends the process at once, without cleaning up.

    Where start-up takes a while, construct a ``StopSignal`` before it instead.
    """
    return await StopSignal().wait()
