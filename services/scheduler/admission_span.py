"""The ``admission`` span: from submit to the first token, with what the request used."""

import time

from opentelemetry.trace import NonRecordingSpan, Span, Tracer
from opentelemetry.trace.span import INVALID_SPAN_CONTEXT

from services.common import trace_names as names
from services.common.tracing import extract
from services.common.types import Finished, Submission


class AdmissionSpan:
    """A child of the router's span; nothing happens when that one is not sampled.

    The span closes when the request ends, since only then all attributes are known, but its end time is that of the
    first token (or of the end, for a request that had none).
    """

    def __init__(self, tracer: Tracer, submission: Submission, replica_id: str, generation: int) -> None:
        self._first_token_ns: int | None = None
        self._span: Span = NonRecordingSpan(INVALID_SPAN_CONTEXT)
        if submission.traceparent:
            parent = extract(submission.traceparent, submission.tracestate)
            self._span = tracer.start_span(names.SPAN_ADMISSION, context=parent)
        if self._span.is_recording():
            self._span.set_attributes(
                {
                    names.REQUEST_ID: submission.request_id,
                    names.REPLICA_ID: replica_id,
                    names.GENERATION: generation,
                }
            )
            if submission.tenant:
                self._span.set_attribute(names.TENANT, submission.tenant)

    def note_first_output(self) -> None:
        """The first event of the request goes out now."""
        self._first_token_ns = time.time_ns()

    def end(self, finished: Finished) -> None:
        """The request has ended."""
        span, usage = self._span, finished.usage
        if not span.is_recording():
            return
        span.set_attributes(
            {
                names.OUTCOME: finished.outcome.value,
                names.GEN_AI_USAGE_INPUT_TOKENS: usage.prompt_tokens,
                names.GEN_AI_USAGE_OUTPUT_TOKENS: usage.output_tokens,
                names.GEN_AI_USAGE_CACHED_TOKENS: usage.cached_tokens,
                names.PREEMPTIONS: usage.preemptions,
            }
        )
        if usage.queue_seconds is not None:
            span.set_attribute(names.QUEUE_SECONDS, usage.queue_seconds)
            span.set_attribute(names.GEN_AI_LATENCY_QUEUE, usage.queue_seconds)
        if usage.first_token_seconds is not None:
            span.set_attribute(names.GEN_AI_LATENCY_FIRST_TOKEN, usage.first_token_seconds)
        if usage.total_seconds is not None:
            span.set_attribute(names.GEN_AI_LATENCY_TOTAL, usage.total_seconds)
        if not finished.outcome.is_success:
            span.set_attribute(names.ERROR_TYPE, finished.outcome.value)
        span.end(self._first_token_ns)


def trace_id_in(traceparent: str) -> str:
    """The trace id of a W3C header, for logs; empty when there is none."""
    parts = traceparent.split("-")
    return parts[1] if len(parts) == 4 else ""
