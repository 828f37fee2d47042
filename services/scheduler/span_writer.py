"""Makes the spans of finished requests on a thread of its own, a few at a time, so that the engine's thread never
waits for them."""

import queue
import threading
import time

from opentelemetry.context import Context
from opentelemetry.trace import set_span_in_context

from services.common import tracing
from services.scheduler.pipeline_recorder import FinishedTrace
from services.scheduler.pipeline_spans import left_out_spans, spans_of
from services.scheduler.span_plan import SpanPlan

MAX_WAITING = 256
"""Finished requests that may wait; more are dropped and counted."""

SPANS_AT_ONCE, PAUSE_S = 8, 0.002
"""Python runs one thread at a time: after so many spans the engine's thread gets its turn."""

CLOSE_TIMEOUT_S = 5.0


class SpanWriter:
    """``put`` never blocks. ``close`` writes what waits and ends the thread."""

    def __init__(self, service_tracing: tracing.Tracing, stages: int) -> None:
        self._tracing = service_tracing
        self._stages = stages
        self._waiting: queue.SimpleQueue[FinishedTrace | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="pipeline-spans", daemon=True)
        self._thread.start()

    def put(self, finished: FinishedTrace) -> None:
        """Hands a request over."""
        if self._waiting.qsize() < MAX_WAITING:
            self._waiting.put(finished)
        else:
            self._tracing.count_dropped("queue-full", 1)

    def close(self) -> None:
        """Bounded in time; then ships the spans."""
        self._waiting.put(None)
        self._thread.join(CLOSE_TIMEOUT_S)
        self._tracing.shutdown()

    def _run(self) -> None:
        made = 0
        while (finished := self._waiting.get()) is not None:
            parent = tracing.extract(finished.request.traceparent)
            self._tracing.count_dropped("block-cap", left_out_spans(finished))
            for plan in spans_of(finished, self._stages):
                made += self._make(plan, parent)
                if made >= SPANS_AT_ONCE:
                    made = 0
                    time.sleep(PAUSE_S)

    def _make(self, plan: SpanPlan, parent: Context) -> int:
        """Makes a span and those below it; returns how many."""
        span = self._tracing.tracer.start_span(plan.name, parent, start_time=plan.start_ns, attributes=plan.attributes)
        below = set_span_in_context(span, parent)
        made = 1 + sum(self._make(child, below) for child in plan.children)
        span.end(plan.end_ns)
        return made
