"""The router's own bound: so many requests at once and no request id twice. Refuses at once, never queues."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from services.common.errors import invalid, overloaded, unavailable


class Admission:
    """Counts requests in flight, both edges together."""

    def __init__(self, max_requests: int, retry_after_ms: int) -> None:
        self._max_requests = max_requests
        self._retry_after_ms = retry_after_ms
        self._in_flight: set[str] = set()
        self._closed = False
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def in_flight(self) -> int:
        """Requests inside ``slot``."""
        return len(self._in_flight)

    @property
    def closed(self) -> bool:
        """``close`` was called."""
        return self._closed

    def holds(self, request_id: str) -> bool:
        """Whether a request of this id is in flight."""
        return request_id in self._in_flight

    def close(self) -> None:
        """Refuses from now on what comes new."""
        self._closed = True

    async def wait_idle(self) -> None:
        """Until nothing is in flight."""
        await self._idle.wait()

    def check_room(self) -> None:
        """Raises ``RequestEndedError`` when one more request would be refused now."""
        if self._closed:
            raise unavailable("this router is stopping; try another, or again later", self._retry_after_ms)
        if len(self._in_flight) >= self._max_requests:
            raise overloaded(
                f"the router already serves {self._max_requests} requests (max_concurrent_requests)",
                self._retry_after_ms,
            )

    @contextmanager
    def slot(self, request_id: str) -> Iterator[None]:
        """Holds a place for the request.

        Raises ``RequestEndedError``: overload when all are taken, invalid when the id is in flight, unavailable when
        the router is stopping.
        """
        self.check_room()
        if request_id in self._in_flight:
            raise invalid("request_id", f"{request_id} is still in flight; ids must be unique among live requests")
        self._in_flight.add(request_id)
        self._idle.clear()
        try:
            yield
        finally:
            self._in_flight.discard(request_id)
            if not self._in_flight:
                self._idle.set()
