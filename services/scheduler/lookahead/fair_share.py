"""Whose turn it is: start-time fair queueing between tenants (Goyal, Vin and Cheng, 1996), by predicted tokens.

Every request gets the virtual time at which it would start if each tenant had a replica of its own as fast as its
weight says; the smallest comes first. A tenant that was away does not save up: its next request starts at the present
virtual time, which is that of the request that was started last.
"""

from collections.abc import Mapping


class FairShare:
    """One per replica. Remembers tenants only as long as they are ahead of the others."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        """``weights``: by tenant; 1 for those not named."""
        self._weights = weights
        self._now = 0.0
        self._busy_until: dict[str, float] = {}

    def enter(self, tenant: str, tokens: float) -> float:
        """The virtual start of a tenant's next request, which is expected to cost ``tokens``."""
        start = max(self._now, self._busy_until.get(tenant, 0.0))
        self._busy_until[tenant] = start + tokens / self._weights.get(tenant, 1.0)
        return start

    def started(self, start: float) -> None:
        """The request with this virtual start begins."""
        if start > self._now:
            self._now = start
            self._busy_until = {tenant: until for tenant, until in self._busy_until.items() if until > start}
