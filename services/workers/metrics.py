"""Prometheus metrics of a stage worker."""

from forerun.stage.v1 import service_pb2 as pb
from prometheus_client import CollectorRegistry, Counter, Histogram

_NANOSECOND = 1e-9
_STEP_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)


class StageMetrics:
    """Where a stage's time goes; busy over (busy + bubble + overhead) is its utilisation under load."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._busy = Counter(
            "forerun_stage_busy_seconds_total", "Time in the model: forward pass and sampling.", registry=registry
        )
        self._idle = Counter(
            "forerun_stage_idle_seconds_total",
            "Time waiting for a plan or for the previous stage's activations.",
            registry=registry,
        )
        self._bubble = Counter(
            "forerun_stage_bubble_seconds_total",
            "Bubbles: the part of idle in which the replica had requests.",
            registry=registry,
        )
        self._overhead = Counter(
            "forerun_stage_overhead_seconds_total",
            "Time decoding plans and encoding replies and activations.",
            registry=registry,
        )
        self._draft = Counter(
            "forerun_stage_draft_seconds_total", "Time drafting on the first stage, part of busy.", registry=registry
        )
        self._steps = Histogram(
            "forerun_stage_step_seconds", "Model time of one step.", buckets=_STEP_BUCKETS, registry=registry
        )
        self._requests = Counter(
            "forerun_stage_scheduled_requests_total", "Requests in steps, summed over steps.", registry=registry
        )
        self._tokens = Counter(
            "forerun_stage_scheduled_tokens_total", "Tokens in steps, summed over steps.", registry=registry
        )
        self.dropped = Counter(
            "forerun_stage_dropped_messages_total",
            "Activations and plans of another generation, dropped.",
            registry=registry,
        )

        self.length_calls = Counter(
            "forerun_stage_length_calls_total",
            "Calls to the predictor: answered, failed, or left out since one was under way (busy).",
            ["result"],
            registry=registry,
        )
        for result in ("answered", "failed", "busy"):
            self.length_calls.labels(result)

    def observe_step(self, times: pb.StepTimes) -> None:
        """Counts one step's times."""
        self._busy.inc(times.busy_ns * _NANOSECOND)
        self._idle.inc(times.idle_ns * _NANOSECOND)
        self._bubble.inc(times.bubble_ns * _NANOSECOND)
        self._overhead.inc(times.overhead_ns * _NANOSECOND)
        self._draft.inc(times.draft_ns * _NANOSECOND)
        if times.busy_ns:
            self._steps.observe(times.busy_ns * _NANOSECOND)

    def observe_batch(self, requests: int, tokens: int) -> None:
        """Counts one step's batch."""
        self._requests.inc(requests)
        self._tokens.inc(tokens)
