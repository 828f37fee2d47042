"""The router's Prometheus metrics. Latencies follow the GenAI convention's server metrics, by Prometheus' naming."""

from prometheus_client import Counter, Gauge, Histogram

from services.common.metrics import SECONDS_BUCKETS, ServiceMetrics
from services.common.outcome import Outcome
from services.common.types import ExpertChoice, Usage
from services.router.request import RETRIED, Edge

TOKEN_SECONDS_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5)

CHOICE_SECONDS_BUCKETS = (0.0001, 0.00025, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05)


class RouterMetrics(ServiceMetrics):
    """``forerun_requests_total{outcome}`` of every service, and the router's own."""

    def __init__(self) -> None:
        super().__init__("router")
        registry = self.registry
        self._duration = Histogram(
            "forerun_request_duration_seconds", "From arrival to the end (gen_ai.server.request.duration).",
            ["edge", "outcome"], buckets=SECONDS_BUCKETS, registry=registry,
        )  # fmt: skip
        self._first_token = Histogram(
            "forerun_time_to_first_token_seconds",
            "From arrival to the first output (gen_ai.server.time_to_first_token).",
            ["edge"], buckets=SECONDS_BUCKETS, registry=registry,
        )  # fmt: skip
        self._per_token = Histogram(
            "forerun_time_per_output_token_seconds",
            "Time per output token after the first (gen_ai.server.time_per_output_token).",
            ["edge"], buckets=TOKEN_SECONDS_BUCKETS, registry=registry,
        )  # fmt: skip
        self._tokens = Counter(
            "forerun_tokens_total", "Tokens of requests that the engine ended.", ["kind"], registry=registry
        )
        self._retries = Counter(
            "forerun_request_retries_total", "Requests sent to a second replica, by what ended the first attempt.",
            ["outcome"], registry=registry,
        )  # fmt: skip
        self._in_flight = Gauge("forerun_requests_in_flight", "Requests in flight.", ["edge"], registry=registry)
        self.replicas = Gauge(
            "forerun_replicas", "Replicas by state, as this router sees them.", ["state"], registry=registry
        )
        self._experts = Counter(
            "forerun_expert_choices_total", "Requests by who was chosen to draft, and why.",
            ["expert", "reason"], registry=registry,
        )  # fmt: skip
        self._choosing = Histogram(
            "forerun_expert_choice_seconds", "Time of that choice.", buckets=CHOICE_SECONDS_BUCKETS, registry=registry
        )
        for outcome in RETRIED:
            self._retries.labels(outcome.value)
        for edge in Edge:
            self._in_flight.labels(edge.value)
            for outcome in Outcome:
                self._duration.labels(edge.value, outcome.value)

    def began(self, edge: Edge) -> None:
        """A request came in."""
        self._in_flight.labels(edge.value).inc()

    def ended(self, edge: Edge, outcome: Outcome, seconds: float) -> None:
        """It ended, ``seconds`` after it came in."""
        self._in_flight.labels(edge.value).dec()
        self.count_request(outcome)
        self._duration.labels(edge.value, outcome.value).observe(seconds)

    def refused(self, edge: Edge, outcome: Outcome) -> None:
        """A request was refused before it could be read as one."""
        self.count_request(outcome)
        self._duration.labels(edge.value, outcome.value).observe(0.0)

    def first_token(self, edge: Edge, seconds: float) -> None:
        """Its first output was handed to the edge."""
        self._first_token.labels(edge.value).observe(seconds)

    def usage(self, edge: Edge, usage: Usage, decode_seconds: float) -> None:
        """The engine ended it; ``decode_seconds`` lie between first and last output."""
        self._tokens.labels("prompt").inc(usage.prompt_tokens)
        self._tokens.labels("output").inc(usage.output_tokens)
        if usage.output_tokens > 1:
            self._per_token.labels(edge.value).observe(decode_seconds / (usage.output_tokens - 1))

    def expert_chosen(self, choice: ExpertChoice, seconds: float) -> None:
        """It took so long to choose who drafts for a request."""
        self._experts.labels(choice.expert or "auto", choice.reason).inc()
        self._choosing.observe(seconds)

    def retried(self, outcome: Outcome) -> None:
        """A request goes to another replica."""
        self._retries.labels(outcome.value).inc()
