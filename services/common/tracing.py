"""OpenTelemetry set-up of one process, and W3C context in and out of text.

Never in a request's way: spans go through a bounded queue to a background thread that ships them at least every
second; a dead collector or a full queue costs spans, which are counted, not time. Works in asyncio services and in
plain processes (engine core, stage workers) alike.
"""

import atexit
import os
import signal
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import FrameType

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from prometheus_client import CollectorRegistry

from services.common.config import TelemetryConfig
from services.common.span_ids import SystemIdGenerator
from services.common.span_pipeline import BoundedSpanProcessor, SpanDrops
from services.common.trace_store import FileSpanExporter
from services.common.version import FORERUN_VERSION

EXPORT_TIMEOUT_S = 5.0
"""One shipment to a collector, retries included."""

SHUTDOWN_TIMEOUT_S = 5.0

_PROPAGATOR = TraceContextTextMapPropagator()


class Tracing:
    """A process's tracer and its pipeline. ``shutdown`` (also at exit) ships what is queued, bounded in time."""

    def __init__(self, tracer: trace.Tracer, provider: TracerProvider, drops: SpanDrops) -> None:
        self.tracer = tracer
        self._provider = provider
        self._drops = drops
        self._lock = threading.Lock()
        self._is_shut_down = False

    @property
    def dropped_spans(self) -> int:
        """Spans lost so far, for any reason."""
        return self._drops.total

    def count_dropped(self, reason: str, spans: int) -> None:
        """Counts spans that were not even made, so that volume stays bounded."""
        self._drops.add(reason, spans)

    def flush(self, timeout_s: float = SHUTDOWN_TIMEOUT_S) -> bool:
        """Ships what is queued; blocks for at most ``timeout_s``. False when time ran out."""
        return _bounded(self._provider.force_flush, timeout_s)

    def shutdown(self, timeout_s: float = SHUTDOWN_TIMEOUT_S) -> None:
        """Ships what is queued and ends the pipeline; blocks for at most ``timeout_s``. Idempotent."""
        with self._lock:
            if self._is_shut_down:
                return
            self._is_shut_down = True
        atexit.unregister(self.shutdown)
        _bounded(self._provider.shutdown, timeout_s)

    def shut_down_on_sigterm(self) -> None:
        """For processes without a signal handler of their own: ship, then do what SIGTERM did before.

        Call from the main thread.
        """
        previous = signal.getsignal(signal.SIGTERM)

        def on_sigterm(number: int, frame: FrameType | None) -> None:
            self.shutdown()
            if callable(previous):
                previous(number, frame)
            elif previous is signal.SIG_DFL:
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)

        signal.signal(signal.SIGTERM, on_sigterm)


def setup_tracing(service: str, config: TelemetryConfig, registry: CollectorRegistry | None = None) -> Tracing:
    """The tracing of this process, as ``forerun-<service>``.

    Spans go to ``otlp_endpoint`` when set, else to a bounded file in ``traces_dir``, else nowhere. Losses count in
    ``forerun_spans_dropped_total`` of ``registry``.
    """
    drops = SpanDrops(registry)
    exporter = _exporter(service, config, drops)
    sampler = ParentBased(TraceIdRatioBased(config.sample_ratio if exporter is not None else 0.0))
    provider = TracerProvider(
        sampler=sampler, resource=_resource(service), shutdown_on_exit=False, id_generator=SystemIdGenerator()
    )
    if exporter is not None:
        provider.add_span_processor(BoundedSpanProcessor(exporter, drops))
    tracing = Tracing(provider.get_tracer("forerun", FORERUN_VERSION), provider, drops)
    atexit.register(tracing.shutdown)
    return tracing


def extract(traceparent: str, tracestate: str = "") -> Context:
    """The context that W3C headers carry; an empty one (so a new trace) when they are empty or malformed."""
    return _PROPAGATOR.extract({"traceparent": traceparent, "tracestate": tracestate}, context=Context())


def extract_metadata(metadata: Iterable[tuple[str, str | bytes]] | None) -> Context:
    """``extract`` from gRPC invocation metadata."""
    carrier = {key: value for key, value in metadata or () if isinstance(value, str)}
    return extract(carrier.get("traceparent", ""), carrier.get("tracestate", ""))


def extract_headers(headers: Mapping[str, str]) -> Context:
    """``extract`` from HTTP headers or vLLM's trace headers; names in lower case."""
    return extract(headers.get("traceparent", ""), headers.get("tracestate", ""))


def is_sampled(traceparent: str) -> bool:
    """False for a trace that nobody records, and for a header that is empty or malformed."""
    return trace.get_current_span(extract(traceparent)).get_span_context().trace_flags.sampled


def inject(span: trace.Span) -> tuple[str, str]:
    """``(traceparent, tracestate)`` that make the receiver's spans children of ``span``; empty for an invalid span."""
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier, context=trace.set_span_in_context(span, Context()))
    return carrier.get("traceparent", ""), carrier.get("tracestate", "")


def inject_metadata(span: trace.Span) -> Sequence[tuple[str, str]]:
    """``inject`` as gRPC metadata."""
    names = ("traceparent", "tracestate")
    return [(name, value) for name, value in zip(names, inject(span), strict=True) if value]


def trace_id_of(span: trace.Span) -> str:
    """32 hexadecimal digits; zeros for an invalid span."""
    return trace.format_trace_id(span.get_span_context().trace_id)


def _exporter(service: str, config: TelemetryConfig, drops: SpanDrops) -> SpanExporter | None:
    if config.otlp_endpoint is not None:
        return OTLPSpanExporter(endpoint=config.otlp_endpoint, timeout=EXPORT_TIMEOUT_S)
    if config.traces_dir is not None:
        return FileSpanExporter(config.traces_dir, service, config.max_trace_file_bytes, drops)
    return None


def _resource(service: str) -> Resource:
    return Resource.create(
        {
            "service.name": f"forerun-{service}",
            "service.version": FORERUN_VERSION,
            "service.instance.id": str(os.getpid()),
        }
    )


def _bounded(action: Callable[[], object], timeout_s: float) -> bool:
    """Runs a blocking action of the SDK, which takes no timeout, for at most ``timeout_s``."""
    thread = threading.Thread(target=action, name="tracing-shutdown", daemon=True)
    thread.start()
    thread.join(timeout_s)
    return not thread.is_alive()
