"""A traced request's spans on one stage: one for its prefill, one for all of its decoding.

A span per step would be hundreds per answer and stage; two per stage tell the same story with the number of
steps and the time spent in them as attributes.
"""

import time
from dataclasses import dataclass, field

from opentelemetry.context import Context
from opentelemetry.trace import Span, Tracer
from vllm.v1.core.sched.output import SchedulerOutput

from services.common import trace_names, tracing


@dataclass
class _Traced:
    parent: Context
    prompt_tokens_left: int
    span: Span
    busy_ns: int = 0
    steps: int = 0
    prefilling: bool = field(default=True)


class StageSpans:
    """Not thread-safe: lives on the model thread. Bounded by the number of running requests."""

    def __init__(self, tracer: Tracer, pipeline_rank: int, tensor_rank: int) -> None:
        self._tracer = tracer
        self._rank = {trace_names.STAGE: pipeline_rank, trace_names.TENSOR_RANK: tensor_rank}
        self._traced: dict[str, _Traced] = {}

    def observe(self, plan: SchedulerOutput, traceparents: dict[str, str], busy_ns: int) -> None:
        """Accounts one step that has just run for ``busy_ns`` nanoseconds."""
        if not self._traced and not traceparents:
            return
        began = time.time_ns() - busy_ns
        for request in plan.scheduled_new_reqs:
            if request.req_id in traceparents:
                self._start(request.req_id, traceparents[request.req_id], request, began)
        for request_id, tokens in plan.num_scheduled_tokens.items():
            if request_id in self._traced:
                self._account(request_id, tokens, busy_ns)
        for request_id in plan.finished_req_ids:
            self._end(request_id)

    def close(self) -> None:
        """Ends what is open, so that a stage that stops leaves whole traces."""
        for request_id in list(self._traced):
            self._end(request_id)

    def _start(self, request_id: str, traceparent: str, request: object, began: int) -> None:
        parent = tracing.extract(traceparent, "")
        left = len(request.prompt_token_ids or ()) - request.num_computed_tokens  # type: ignore[attr-defined]
        span = self._tracer.start_span(trace_names.SPAN_PREFILL, parent, start_time=began)
        self._traced[request_id] = _Traced(parent, left, span)

    def _account(self, request_id: str, tokens: int, busy_ns: int) -> None:
        traced = self._traced[request_id]
        traced.busy_ns += busy_ns
        traced.steps += 1
        if not traced.prefilling:
            return
        traced.prompt_tokens_left -= tokens
        if traced.prompt_tokens_left <= 0:
            self._finish_span(traced, request_id)
            traced.span = self._tracer.start_span(trace_names.SPAN_DECODE, traced.parent)
            traced.prefilling = False
            traced.busy_ns = traced.steps = 0

    def _end(self, request_id: str) -> None:
        traced = self._traced.pop(request_id, None)
        if traced is not None:
            self._finish_span(traced, request_id)

    def _finish_span(self, traced: _Traced, request_id: str) -> None:
        traced.span.set_attributes(self._rank)
        traced.span.set_attribute(trace_names.STEPS, traced.steps)
        traced.span.set_attribute(trace_names.BUSY_SECONDS, traced.busy_ns / 1e9)
        traced.span.set_attribute(trace_names.REQUEST_ID, request_id)
        traced.span.end()
