"""Span ids stay unique when something seeds Python's random numbers, as vLLM does in every process."""

import random

from services.common.config import TelemetryConfig
from services.common.tracing import setup_tracing


def test_ids_do_not_follow_python_s_seed() -> None:
    tracing = setup_tracing("test", TelemetryConfig())
    seen = set()
    for _ in range(2):
        random.seed(0)
        context = tracing.tracer.start_span("span").get_span_context()
        seen |= {context.trace_id, context.span_id}
    tracing.shutdown()
    assert len(seen) == 4
