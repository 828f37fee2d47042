"""The front's own Prometheus metrics; vLLM's ``vllm:*`` stand beside them on the same page."""

from collections.abc import Callable

from prometheus_client import Counter, Gauge, Histogram

from services.common.metrics import SECONDS_BUCKETS, ServiceMetrics
from services.common.types import Finished, ReplicaState


class SchedulerMetrics:
    """One replica's counters. All are labelled with the replica, so that a fleet's can be told apart."""

    def __init__(self, service: ServiceMetrics, replica_id: str) -> None:
        self._service = service
        self._replica_id = replica_id
        self._registry = service.registry
        states = Gauge(
            "forerun_scheduler_state", "1 for the replica's state.", ["replica", "state"], registry=self._registry
        )
        self._states = {state: states.labels(replica_id, state.value) for state in ReplicaState}
        self._queue_seconds = self._histogram("queue_seconds", "From arrival to the first scheduled step.")
        self._first_token_seconds = self._histogram("first_token_seconds", "From arrival to the first token.")
        self._total_seconds = self._histogram("request_seconds", "From arrival to the end, where the engine ended it.")
        self.messages = self._counter("session_messages", "Messages sent to routers.")
        self.events = self._counter("session_events", "Events in those messages.")
        self.merged_deltas = self._counter("session_merged_deltas", "Deltas merged because a router did not read.")
        self.overflows = self._counter("session_overflows", "Sessions closed because a router did not read.")
        self.note_state(ReplicaState.SERVING)

    def watch(self, name: str, text: str, value: Callable[[], float]) -> None:
        """A gauge read at scrape time, from another thread."""
        gauge = Gauge(f"forerun_scheduler_{name}", text, ["replica"], registry=self._registry)
        gauge.labels(self._replica_id).set_function(value)

    def note_end(self, finished: Finished) -> None:
        """Counts one request's end."""
        self._service.count_request(finished.outcome)
        usage = finished.usage
        if usage.queue_seconds is not None:
            self._queue_seconds.observe(usage.queue_seconds)
        if usage.first_token_seconds is not None:
            self._first_token_seconds.observe(usage.first_token_seconds)
        if usage.total_seconds is not None and finished.outcome.is_success:
            self._total_seconds.observe(usage.total_seconds)

    def note_state(self, state: ReplicaState) -> None:
        """Records the replica's state."""
        for known, gauge in self._states.items():
            gauge.set(known is state)

    def _counter(self, name: str, text: str) -> Counter:
        counter = Counter(f"forerun_scheduler_{name}", text, ["replica"], registry=self._registry)
        return counter.labels(self._replica_id)

    def _histogram(self, name: str, text: str) -> Histogram:
        histogram = Histogram(
            f"forerun_scheduler_{name}", text, ["replica"], registry=self._registry, buckets=SECONDS_BUCKETS
        )
        return histogram.labels(self._replica_id)
