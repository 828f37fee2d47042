"""Tells of the ledger's loss and return, once each, whatever the number of failed attempts."""

import logging
import time

from prometheus_client import Gauge

_log = logging.getLogger(__name__)


class Outage:
    """Whether Redis answers one of our two sides. Starts as not reachable, silently."""

    def __init__(self, who: str, place: str, gauge: Gauge) -> None:
        """``who`` and ``place`` go into the messages; the gauge shows 1 while Redis answers."""
        self._who = who
        self._place = place
        self._gauge = gauge
        self._began_at: float | None = None
        self.reachable = False
        self.reason = "not reached yet"

    def failed(self, reason: str) -> None:
        """An attempt failed."""
        self.reachable = False
        self.reason = reason
        self._gauge.set(0)
        if self._began_at is None:
            self._began_at = time.monotonic()
            _log.warning("ledger at %s is lost to %s: %s; trying on, serving on", self._place, self._who, reason)

    def over(self) -> None:
        """An attempt succeeded."""
        if self._began_at is not None:
            lost_s = time.monotonic() - self._began_at
            _log.info("ledger at %s is back for %s after %.1f s", self._place, self._who, lost_s)
        self._began_at = None
        self.reachable = True
        self.reason = ""
        self._gauge.set(1)
