"""What a replica tells the KV ledger, computed from the engine's own books after each step.

Where no admission policy forecasts, the forecast here is a plain one: every running request grows until its own token
limit, over the next ``FORECAST_TOKENS`` tokens, and none finishes early.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from prometheus_client import CollectorRegistry

from services.common.ledger import LedgerWriter, ReplicaTotals, WriterMetrics
from services.scheduler.engine_core_settings import EngineCoreSettings

FORECAST_TOKENS = 64
"""Horizon of the forecast, in tokens of each running request."""


@dataclass(frozen=True, slots=True)
class RequestBlocks:
    """A running or waiting request's claim on the pool."""

    request_id: str
    reservation_id: str
    """The router's promise that this request uses up; empty when it came without one."""
    held: int
    """KV blocks it holds."""
    tokens: int
    """Tokens it has, prompt and answer."""
    tokens_left: int
    """Most tokens it may still generate."""


class LedgerSource:
    """Turns the scheduler's books into ledger writes; ``publish`` costs microseconds and never waits for Redis."""

    def __init__(self, settings: EngineCoreSettings, block_size: int, registry: CollectorRegistry) -> None:
        self._block_size = block_size
        self._writer: LedgerWriter | None = None
        if settings.ledger.enabled:
            self._writer = LedgerWriter(
                settings.ledger, settings.replica_id, settings.address, settings.generation, WriterMetrics(registry)
            )
            self._writer.start()

    def publish(
        self,
        total: int,
        free: int,
        running: list[RequestBlocks],
        waiting: list[RequestBlocks],
        forecast: int | None = None,
    ) -> None:
        """The engine's truth as of now; the newest wins. ``forecast``: blocks in use at most; None: the plain one."""
        if self._writer is None:
            return
        held = total - free
        totals = ReplicaTotals(
            total=total,
            free=free,
            held=held,
            forecast_peak=forecast_peak(held, running, self._block_size) if forecast is None else forecast,
            running=len(running),
            waiting=len(waiting),
        )
        self._writer.publish(
            totals,
            held={request.request_id: request.held for request in running},
            waiting={
                request.reservation_id or request.request_id: math.ceil(request.tokens / self._block_size)
                for request in waiting
            },
        )

    def prefixes(self, stored: list[str], removed: list[str]) -> None:
        """Prefixes that came into the cache and that left it, by name."""
        if self._writer is not None:
            self._writer.prefixes(stored, removed)

    def admitted(self, reservation_id: str) -> None:
        """The reservation's request holds blocks now."""
        if self._writer is not None and reservation_id:
            self._writer.admitted(reservation_id)

    def close(self) -> None:
        """Leaves the ledger, if it can be reached; bounded."""
        if self._writer is not None:
            self._writer.close()


def forecast_peak(held: int, running: Iterable[RequestBlocks], block_size: int) -> int:
    """Blocks in use once every running request has grown by ``FORECAST_TOKENS`` or to its own limit."""
    growth = 0
    for request in running:
        future = request.tokens + min(request.tokens_left, FORECAST_TOKENS)
        growth += max(0, math.ceil(future / block_size) - request.held)
    return held + growth
