"""From ended spans to an exporter, in the background, bounded, and with every loss counted."""

import threading
from collections.abc import Callable, Sequence

from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from prometheus_client import CollectorRegistry, Counter

MAX_QUEUED_SPANS = 8192
MAX_BATCH_SPANS = 512
FLUSH_INTERVAL_S = 1.0


REASONS = ("queue-full", "export-failed", "rotated", "too-large", "block-cap")


class SpanDrops:
    """Counts lost spans, by one of ``REASONS``."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self._lock = threading.Lock()
        self._total = 0
        self._counter = Counter(
            "forerun_spans_dropped_total", "Trace spans lost, by reason.", ["reason"], registry=registry
        )
        for reason in REASONS:
            self._counter.labels(reason)

    @property
    def total(self) -> int:
        """All reasons together."""
        return self._total

    def add(self, reason: str, spans: int) -> None:
        """Counts ``spans`` lost spans."""
        if spans > 0:
            with self._lock:
                self._total += spans
            self._counter.labels(reason).inc(spans)


class BoundedSpanProcessor(SpanProcessor):
    """OpenTelemetry's batch processor, which drops silently, behind a queue bound that counts."""

    def __init__(self, exporter: SpanExporter, drops: SpanDrops, max_queued: int = MAX_QUEUED_SPANS) -> None:
        self._drops = drops
        self._max_queued = max_queued
        self._lock = threading.Lock()
        self._queued = 0
        self._batches = BatchSpanProcessor(
            _CountingExporter(exporter, drops, self._on_taken),
            max_queue_size=max_queued,
            schedule_delay_millis=FLUSH_INTERVAL_S * 1e3,
            max_export_batch_size=min(MAX_BATCH_SPANS, max_queued),
        )

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Nothing is recorded before a span ends."""

    def on_end(self, span: ReadableSpan) -> None:
        """Queues a sampled span, or counts it as lost; never blocks."""
        if span.context is None or not span.context.trace_flags.sampled:
            return
        with self._lock:
            is_full = self._queued >= self._max_queued
            self._queued += not is_full
        if is_full:
            self._drops.add("queue-full", 1)
        else:
            self._batches.on_end(span)

    def shutdown(self) -> None:
        """Ships what is queued; may block as long as the exporter does."""
        self._batches.shutdown()  # type: ignore[no-untyped-call]

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Ships what is queued; may block as long as the exporter does."""
        return self._batches.force_flush(timeout_millis)

    def _on_taken(self, spans: int) -> None:
        with self._lock:
            self._queued -= spans


class _CountingExporter(SpanExporter):
    def __init__(self, inner: SpanExporter, drops: SpanDrops, on_taken: Callable[[int], None]) -> None:
        self._inner = inner
        self._drops = drops
        self._on_taken = on_taken

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self._on_taken(len(spans))
        result = self._inner.export(spans)
        if result is not SpanExportResult.SUCCESS:
            self._drops.add("export-failed", len(spans))
        return result

    def shutdown(self) -> None:
        self._inner.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._inner.force_flush(timeout_millis)
