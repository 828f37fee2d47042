"""Bounded waits of tests."""

import asyncio
import time
from collections.abc import Callable

POLL_S = 0.02


async def eventually(condition: Callable[[], object], timeout_s: float = 5.0) -> None:
    """Returns when ``condition()`` is true. Raises ``TimeoutError`` when it is not in time."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110  (a test looks from outside; nothing sets an event for it)
            await asyncio.sleep(POLL_S)


def eventually_sync(condition: Callable[[], object], timeout_s: float = 5.0) -> None:
    """``eventually`` for tests without an event loop."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(POLL_S)
