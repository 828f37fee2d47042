"""Tells any number of waiting tasks that something changed, without a queue for any of them."""

import asyncio


class ChangeSignal:
    """Who waits names the version it has seen, so that no change between looking and waiting is missed."""

    def __init__(self) -> None:
        self._version = 0
        self._event = asyncio.Event()

    @property
    def version(self) -> int:
        """Counts the changes."""
        return self._version

    def notify(self) -> None:
        """Something changed."""
        self._version += 1
        self._event.set()
        self._event = asyncio.Event()

    async def wait_past(self, version: int) -> None:
        """Returns once something changed after ``version``."""
        while self._version <= version:
            await self._event.wait()
