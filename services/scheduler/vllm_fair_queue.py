"""vLLM's queue of waiting requests, in the order of a fair share between tenants.

Lives in vLLM's engine-core process. Relies on (vLLM 0.32): the scheduler uses ``waiting`` through ``RequestQueue``
alone, takes a request with ``pop_request``, and returns one that it passes over, or preempts, with ``prepend_request``.
"""

from bisect import insort
from collections.abc import Callable, Iterable, Iterator

from vllm.v1.core.sched.request_queue import RequestQueue
from vllm.v1.request import Request

from services.scheduler.lookahead.fair_share import FairShare

_Key = tuple[int, float, int]
"""Priority, virtual start, number of arrival: smaller is sooner."""


class FairQueue(RequestQueue):
    """A request keeps its place when it comes back."""

    def __init__(
        self,
        share: FairShare,
        tenant_of: Callable[[Request], str],
        tokens_of: Callable[[Request], float],
        *,
        by_priority: bool,
    ) -> None:
        """``tokens_of``: what a request is expected to cost. ``by_priority``: fair among those of one priority."""
        self._share = share
        self._tenant_of = tenant_of
        self._tokens_of = tokens_of
        self._by_priority = by_priority
        self._arrivals = 0
        self._waiting: list[tuple[_Key, Request]] = []

    def add_request(self, request: Request) -> None:
        """Behind its tenant's others."""
        start = self._share.enter(self._tenant_of(request), self._tokens_of(request))
        self._arrivals += 1
        # On the request itself, so that its place is forgotten with it.
        request.forerun_place = (request.priority if self._by_priority else 0, start, self._arrivals)
        self.prepend_request(request)

    def pop_request(self) -> Request:
        """The first one. Raises ``IndexError`` when nobody waits."""
        key, request = self._waiting.pop(0)
        self._share.started(key[1])
        return request

    def peek_request(self) -> Request:
        """The first one stays. Raises ``IndexError`` when nobody waits."""
        return self._waiting[0][1]

    def prepend_request(self, request: Request) -> None:
        """Back to its place."""
        insort(self._waiting, (request.forerun_place, request), key=lambda each: each[0])

    def prepend_requests(self, requests: Iterable[Request]) -> None:
        """Each back to its place."""
        for request in requests:
            self.prepend_request(request)

    def remove_request(self, request: Request) -> None:
        """It is over."""
        self.remove_requests((request,))

    def remove_requests(self, requests: Iterable[Request]) -> None:
        """They are over."""
        gone = set(requests)
        self._waiting = [each for each in self._waiting if each[1] not in gone]

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Request]:
        return iter([request for _, request in self._waiting])
