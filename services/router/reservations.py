"""KV blocks promised to requests on their way, in the ledger's one place for all routers.

A request never waits for the ledger longer than one bounded command, and never fails because of it: without an
answer it travels on. Giving back happens behind the request's back; what is lost expires by its lease.
"""

import asyncio
import secrets
from typing import Protocol

import structlog

from services.common.ledger import LedgerUnavailableError

RELEASE_TIMEOUT_S = 2.0
MAX_PENDING_RELEASES = 4096

_log = structlog.get_logger(__name__)


class ReservationLedger(Protocol):
    """What this module needs of the ledger's view."""

    @property
    def reachable(self) -> bool:
        """The last exchange with the ledger went well."""
        ...

    async def reserve(self, replica_id: str, reservation_id: str, blocks: int) -> bool:
        """Promises blocks; False when they do not fit. Raises ``LedgerUnavailableError``."""
        ...

    async def release(self, reservation_id: str) -> None:
        """Gives the promise back; no harm when it is gone. Never raises."""
        ...


class Reservations:
    """One router's reservations. Without a ledger every request travels unreserved."""

    def __init__(self, ledger: ReservationLedger | None) -> None:
        self._ledger = ledger
        self._releases: asyncio.Queue[str] = asyncio.Queue(MAX_PENDING_RELEASES)
        self._releaser: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begins to give back what ``release`` is told."""
        self._releaser = asyncio.create_task(self._release_all(), name="release-reservations")

    async def close(self) -> None:
        """Gives back what is still queued, for a bounded time."""
        if self._releaser is None:
            return
        try:
            await asyncio.wait_for(self._releases.join(), RELEASE_TIMEOUT_S)
        except TimeoutError:
            _log.warning("reservations left to their lease", count=self._releases.qsize())
        self._releaser.cancel()
        await asyncio.gather(self._releaser, return_exceptions=True)

    async def reserve(self, replica_id: str, blocks: int) -> str | None:
        """The id of the reservation, None when the blocks are not there.

        Empty while the ledger is away. An id whose grant was lost on the way is returned as well: it may exist.
        """
        if self._ledger is None or not self._ledger.reachable:
            return ""
        reservation_id = secrets.token_hex(8)
        try:
            granted = await self._ledger.reserve(replica_id, reservation_id, blocks)
        except LedgerUnavailableError:
            return reservation_id
        except asyncio.CancelledError:
            self.release(reservation_id)
            raise
        return reservation_id if granted else None

    def release(self, reservation_id: str) -> None:
        """Gives a reservation back soon, whether or not the replica has admitted the request; never waits.

        When too many wait, leases do it.
        """
        if reservation_id and not self._releases.full():
            self._releases.put_nowait(reservation_id)

    async def _release_all(self) -> None:
        while True:
            reservation_id = await self._releases.get()
            if self._ledger is not None:
                await self._ledger.release(reservation_id)
            self._releases.task_done()
