"""Tracing stands in nobody's way: dead collectors, full queues and sudden ends cost spans at most, and are counted."""

import re
import socket
import threading
import time
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import INVALID_SPAN
from prometheus_client import CollectorRegistry

from services.common import trace_names
from services.common.config import TelemetryConfig
from services.common.span_pipeline import BoundedSpanProcessor, SpanDrops
from services.common.trace_store import read_trace
from services.common.tracing import (
    Tracing,
    extract,
    extract_headers,
    extract_metadata,
    inject,
    inject_metadata,
    setup_tracing,
    trace_id_of,
)
from tests.support.waiting import eventually_sync


def finish_one(tracing: Tracing, name: str = "one") -> str:
    with tracing.tracer.start_as_current_span(name) as span:
        return trace_id_of(span)


def test_spans_are_on_disk_within_about_a_second(tmp_path: Path) -> None:
    tracing = setup_tracing("router", TelemetryConfig(traces_dir=tmp_path))
    trace_id = finish_one(tracing)
    eventually_sync(lambda: read_trace(tmp_path, trace_id), 3)
    tracing.shutdown()
    tracing.shutdown()


def test_shutdown_writes_what_is_queued(tmp_path: Path) -> None:
    tracing = setup_tracing("router", TelemetryConfig(traces_dir=tmp_path))
    trace_ids = [finish_one(tracing) for _ in range(2000)]
    tracing.shutdown()
    assert tracing.dropped_spans == 0
    assert sum(len(path.read_text().splitlines()) for path in tmp_path.glob("*.jsonl")) == len(trace_ids)


def test_without_collector_and_folder_nothing_is_recorded(tmp_path: Path) -> None:
    tracing = setup_tracing("router", TelemetryConfig())
    with tracing.tracer.start_as_current_span("one") as span:
        assert not span.is_recording()
        assert span.get_span_context().is_valid
    tracing.shutdown()


def test_a_callers_sampling_decision_comes_first(tmp_path: Path) -> None:
    tracing = setup_tracing("router", TelemetryConfig(traces_dir=tmp_path, sample_ratio=0.0))
    for flags, is_recorded in (("01", True), ("00", False)):
        context = extract(f"00-{'ab' * 16}-{'cd' * 8}-{flags}")
        with tracing.tracer.start_as_current_span("one", context=context) as span:
            assert span.is_recording() is is_recorded
            assert trace_id_of(span) == "ab" * 16
    tracing.shutdown()


def test_context_passes_through_text_and_metadata(tmp_path: Path) -> None:
    tracing = setup_tracing("router", TelemetryConfig(traces_dir=tmp_path))
    with tracing.tracer.start_as_current_span(
        "parent", context=extract(f"00-{'ab' * 16}-{'cd' * 8}-01", "a=b")
    ) as parent:
        traceparent, tracestate = inject(parent)
        assert tracestate == "a=b"
        for context in (
            extract(traceparent, tracestate),
            extract_metadata(inject_metadata(parent)),
            extract_metadata([*inject_metadata(parent), ("trace-bin", b"\x00")]),
            extract_headers({"traceparent": traceparent}),
        ):
            with tracing.tracer.start_as_current_span("child", context=context) as child:
                assert trace_id_of(child) == "ab" * 16
                assert child.parent.span_id == parent.get_span_context().span_id
    assert inject(INVALID_SPAN) == ("", "")
    assert inject_metadata(INVALID_SPAN) == []
    tracing.shutdown()


@pytest.mark.parametrize("traceparent", ["", "nonsense", "00-" + "0" * 32 + "-" + "0" * 16 + "-01", "x" * 10_000, "é"])
def test_malformed_context_starts_a_new_trace(traceparent: str) -> None:
    tracing = setup_tracing("router", TelemetryConfig())
    # Even inside another span: what came with the request counts, not what this task happens to be in.
    with (
        tracing.tracer.start_as_current_span("outer") as outer,
        tracing.tracer.start_as_current_span("one", context=extract(traceparent, "\x00=,")) as span,
    ):
        assert span.get_span_context().is_valid
        assert trace_id_of(span) != trace_id_of(outer)
    tracing.shutdown()


class _Stuck(SpanExporter):
    """A collector that does not answer until let go."""

    def __init__(self, result: SpanExportResult = SpanExportResult.SUCCESS) -> None:
        self.go = threading.Event()
        self.exported = 0
        self._result = result

    def export(self, spans):
        self.go.wait(20)
        self.exported += len(spans)
        return self._result


def test_a_full_queue_drops_counts_and_never_blocks() -> None:
    registry, exporter = CollectorRegistry(), _Stuck()
    drops = SpanDrops(registry)
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BoundedSpanProcessor(exporter, drops, max_queued=100))
    tracer = provider.get_tracer("test")
    started = time.monotonic()
    for _ in range(1000):
        tracer.start_span("one").end()
    assert time.monotonic() - started < 2
    exporter.go.set()
    provider.shutdown()
    assert exporter.exported + drops.total == 1000
    assert 100 <= exporter.exported <= 300
    assert registry.get_sample_value("forerun_spans_dropped_total", {"reason": "queue-full"}) == drops.total


def test_a_failed_export_is_counted() -> None:
    registry, exporter = CollectorRegistry(), _Stuck(SpanExportResult.FAILURE)
    exporter.go.set()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BoundedSpanProcessor(exporter, SpanDrops(registry)))
    provider.get_tracer("test").start_span("one").end()
    provider.shutdown()
    assert registry.get_sample_value("forerun_spans_dropped_total", {"reason": "export-failed"}) == 1


@pytest.mark.parametrize("is_deaf", [False, True], ids=["refusing", "deaf"])
def test_a_dead_collector_blocks_nobody(is_deaf: bool) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        if is_deaf:
            listener.listen()
        registry = CollectorRegistry()
        endpoint = f"http://127.0.0.1:{listener.getsockname()[1]}"
        tracing = setup_tracing("router", TelemetryConfig(otlp_endpoint=endpoint), registry)
        started = time.monotonic()
        for _ in range(200):
            finish_one(tracing)
        assert time.monotonic() - started < 1
        tracing.flush(timeout_s=0.5)
        tracing.shutdown(timeout_s=2)
        assert time.monotonic() - started < 5


def test_names_are_spelled_once_and_private_ones_stay_out_of_gen_ai() -> None:
    values = {name: value for name, value in vars(trace_names).items() if name.isupper()}
    spans = [value for name, value in values.items() if name.startswith("SPAN_")]
    assert {"forerun.request", "route", "admission", "stage.prefill", "stage.decode"} <= set(spans)
    assert len(set(values.values())) == len(values)
    for name, value in values.items():
        assert re.fullmatch(r"[a-z0-9_.]+", value), name
        assert value.startswith("gen_ai.") == name.startswith("GEN_AI_"), name
