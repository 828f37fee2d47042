"""What is kept of one request while it runs: its span, its clock and its one outcome."""

import time
from collections.abc import Sequence

import structlog
from opentelemetry import trace
from opentelemetry.trace import SpanKind, Status, StatusCode

from services.common import trace_names as names
from services.common.outcome import Outcome
from services.common.tracing import extract, inject, trace_id_of
from services.common.types import Delta, Finished
from services.router.metrics import RouterMetrics
from services.router.request import ChatPrompt, RouterEvent, RouterRequest

EDGE = "forerun.edge"
"""Span attribute: grpc or http."""

_FAULTS = frozenset({Outcome.INTERNAL, Outcome.REPLICA_LOST, Outcome.REJECTED_UNAVAILABLE, Outcome.DEADLINE})
"""Outcomes that make the server's span an error; the others are the client's doing."""

_log = structlog.get_logger(__name__)


class RequestRecord:
    """Opened when a request comes in; ``end`` counts it exactly once."""

    def __init__(self, request: RouterRequest, request_id: str, tracer: trace.Tracer, metrics: RouterMetrics) -> None:
        self.request_id = request_id
        self._edge = request.edge
        self._metrics = metrics
        self._began = time.monotonic()
        self._first_output: float | None = None
        self._ended = False
        self.span = tracer.start_span(
            names.SPAN_REQUEST,
            context=extract(request.traceparent, request.tracestate),
            kind=SpanKind.SERVER,
            attributes=_request_attributes(request, request_id),
        )
        self.trace_id = trace_id_of(self.span)
        metrics.began(request.edge)

    @property
    def context(self) -> tuple[str, str]:
        """``(traceparent, tracestate)`` for the replica."""
        return inject(self.span)

    def saw(self, events: Sequence[RouterEvent]) -> None:
        """Notes output on its way to the client; the last event ends the request."""
        if self._first_output is None and any(isinstance(event, Delta) for event in events):
            self._first_output = time.monotonic()
            self._metrics.first_token(self._edge, self._first_output - self._began)
        if isinstance(events[-1], Finished):
            # Now, since whoever has the last event may not ask for another.
            self._finished(events[-1])
            self.end(events[-1].outcome)

    def retried(self, outcome: Outcome) -> None:
        """The first replica ended it with ``outcome`` before any output; it goes to another."""
        self._metrics.retried(outcome)
        self.span.set_attribute(names.RETRIED, True)

    def end(self, outcome: Outcome, message: str = "") -> None:
        """The request's one end; later calls change nothing."""
        if self._ended:
            return
        self._ended = True
        seconds = time.monotonic() - self._began
        self._metrics.ended(self._edge, outcome, seconds)
        self.span.set_attribute(names.OUTCOME, outcome.value)
        if not outcome.is_success:
            self.span.set_attribute(names.ERROR_TYPE, outcome.value)
        if outcome in _FAULTS:
            self.span.set_status(Status(StatusCode.ERROR, message))
        self.span.end()
        _log.info(
            "request ended",
            request_id=self.request_id,
            trace_id=self.trace_id,
            edge=self._edge.value,
            outcome=outcome.value,
            seconds=round(seconds, 4),
            **({"reason": message} if message else {}),
        )

    def _finished(self, finished: Finished) -> None:
        usage, now = finished.usage, time.monotonic()
        first = now if self._first_output is None else self._first_output
        self._metrics.usage(self._edge, usage, now - first)
        self.span.set_attributes(
            {
                names.GEN_AI_RESPONSE_FINISH_REASONS: [choice.outcome.value for choice in finished.choices],
                names.GEN_AI_USAGE_INPUT_TOKENS: usage.prompt_tokens,
                names.GEN_AI_USAGE_OUTPUT_TOKENS: usage.output_tokens,
                names.GEN_AI_USAGE_CACHED_TOKENS: usage.cached_tokens,
                names.GEN_AI_LATENCY_FIRST_TOKEN: first - self._began,
                names.GEN_AI_LATENCY_TOTAL: now - self._began,
            }
        )
        if usage.queue_seconds is not None:
            self.span.set_attribute(names.GEN_AI_LATENCY_QUEUE, usage.queue_seconds)
        if usage.speculation is not None:
            self.span.set_attribute(names.SPEC_DRAFTED, usage.speculation.draft_tokens)
            self.span.set_attribute(names.SPEC_ACCEPTED, usage.speculation.accepted_tokens)


def _request_attributes(request: RouterRequest, request_id: str) -> dict[str, str | int | float | bool | list[str]]:
    sampling = request.sampling
    chat = isinstance(request.prompt, ChatPrompt)
    attributes: dict[str, str | int | float | bool | list[str] | None] = {
        names.GEN_AI_OPERATION: request.operation or (names.OPERATION_CHAT if chat else names.OPERATION_TEXT),
        names.GEN_AI_PROVIDER: names.PROVIDER,
        names.GEN_AI_REQUEST_MODEL: request.model or None,
        names.GEN_AI_REQUEST_MAX_TOKENS: sampling.max_tokens,
        names.GEN_AI_REQUEST_TEMPERATURE: sampling.temperature,
        names.GEN_AI_REQUEST_TOP_P: sampling.top_p,
        names.GEN_AI_REQUEST_TOP_K: sampling.top_k,
        names.GEN_AI_REQUEST_SEED: sampling.seed,
        names.GEN_AI_REQUEST_STOP_SEQUENCES: list(sampling.stop) or None,
        names.GEN_AI_REQUEST_CHOICE_COUNT: sampling.n,
        names.GEN_AI_REQUEST_STREAM: not request.final_only,
        names.GEN_AI_RESPONSE_ID: request_id,
        names.REQUEST_ID: request_id,
        EDGE: request.edge.value,
    }
    return {key: value for key, value in attributes.items() if value is not None}
