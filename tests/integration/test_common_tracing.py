"""Spans that leave the process: to a real collector, and out of processes that end in every way."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc

from services.common.config import TelemetryConfig
from services.common.tracing import setup_tracing, trace_id_of
from tests.support.waiting import eventually_sync


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """An OTLP collector that keeps what it gets."""

    def __init__(self) -> None:
        self.requests: list[trace_service_pb2.ExportTraceServiceRequest] = []

    def Export(self, request, context):
        self.requests.append(request)
        return trace_service_pb2.ExportTraceServiceResponse()


@pytest.fixture
def collector() -> Iterator[tuple[Collector, str]]:
    server, servicer = grpc.server(futures.ThreadPoolExecutor(2)), Collector()
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield servicer, f"http://127.0.0.1:{port}"
    server.stop(0).wait()


def test_a_collector_really_gets_the_spans_within_about_a_second(
    collector: tuple[Collector, str], tmp_path: Path
) -> None:
    servicer, endpoint = collector
    tracing = setup_tracing("router", TelemetryConfig(otlp_endpoint=endpoint, traces_dir=tmp_path))
    with tracing.tracer.start_as_current_span("forerun.request") as span:
        trace_id = trace_id_of(span)
    eventually_sync(lambda: servicer.requests, 5)
    resource_spans = servicer.requests[0].resource_spans[0]
    resource = {attribute.key: attribute.value.string_value for attribute in resource_spans.resource.attributes}
    assert resource["service.name"] == "forerun-router"
    sent = resource_spans.scope_spans[0].spans[0]
    assert (sent.name, sent.trace_id.hex()) == ("forerun.request", trace_id)
    tracing.shutdown()
    assert tracing.dropped_spans == 0
    # With a collector there is no second copy on disk.
    assert list(tmp_path.iterdir()) == []


CHILD = """
import os, signal, sys, time
from pathlib import Path
from services.common.config import TelemetryConfig
from services.common.tracing import setup_tracing
tracing = setup_tracing("stage", TelemetryConfig(traces_dir=Path(sys.argv[1])))
if sys.argv[2] == "sigterm":
    tracing.shut_down_on_sigterm()
elif sys.argv[2] == "own-handler":
    signal.signal(signal.SIGTERM, lambda *_: os._exit(7))
    tracing.shut_down_on_sigterm()
tracing.tracer.start_span("one").end()
print("ended", flush=True)
if sys.argv[2] != "exit":
    time.sleep(60)
"""


@pytest.mark.parametrize(
    ("how", "number", "status"),
    [
        ("exit", None, 0),
        ("sigterm", signal.SIGTERM, -signal.SIGTERM),
        ("own-handler", signal.SIGTERM, 7),
        ("interrupt", signal.SIGINT, -signal.SIGINT),
    ],
)
def test_a_plain_process_leaves_its_spans_behind(
    tmp_path: Path, how: str, number: signal.Signals | None, status: int
) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(tmp_path), how], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ended\n"
        if number is not None:
            child.send_signal(number)
        assert child.wait(15) == status
    finally:
        child.kill()
        child.wait()
    (path,) = tmp_path.glob("stage-*.jsonl")
    assert '"name":"one"' in path.read_text()


SPAWNING = """
import multiprocessing, sys
from pathlib import Path
from services.common.config import TelemetryConfig
from services.common.tracing import setup_tracing

def child(folder):
    setup_tracing("core", TelemetryConfig(traces_dir=Path(folder))).tracer.start_span("one").end()

if __name__ == "__main__":
    process = multiprocessing.get_context("spawn").Process(target=child, args=(sys.argv[1],))
    process.start()
    process.join()
    sys.exit(process.exitcode)
"""


def test_a_spawned_child_leaves_its_spans_behind(tmp_path: Path) -> None:
    """As vLLM starts its engine core."""
    script, folder = tmp_path / "spawning.py", tmp_path / "traces"
    script.write_text(SPAWNING)
    subprocess.run([sys.executable, str(script), str(folder)], check=True, timeout=30)
    (path,) = folder.glob("core-*.jsonl")
    assert '"name":"one"' in path.read_text()
