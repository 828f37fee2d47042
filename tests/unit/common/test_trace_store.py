"""Spans written are read back by any of their names, the files stay bounded, and losses are counted."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import SpanKind, Status, StatusCode, Tracer

from services.common.span_pipeline import SpanDrops
from services.common.trace_names import GEN_AI_RESPONSE_ID, REQUEST_ID
from services.common.trace_store import AmbiguousTraceIdError, FileSpanExporter, read_trace


class Writer:
    """A tracer whose spans are in the file as soon as they end."""

    def __init__(self, folder: Path, service: str = "router", max_bytes: int = 1 << 20) -> None:
        self.drops = SpanDrops()
        self.exporter = FileSpanExporter(folder, service, max_bytes, self.drops)
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer: Tracer = provider.get_tracer("test")


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[Writer]:
    made = Writer(tmp_path)
    yield made
    made.exporter.shutdown()


def write_request(tracer: Tracer, request_id: str, key: str = REQUEST_ID) -> str:
    """A request span with a child; returns the trace id."""
    with tracer.start_as_current_span("forerun.request", kind=SpanKind.SERVER, attributes={key: request_id}) as span:
        with tracer.start_as_current_span("route"):
            pass
        span.add_event("first token", {"tokens": 1})
        span.set_attribute("counts", [1, 2])
        span.set_status(Status(StatusCode.ERROR, "lost"))
    return f"{span.get_span_context().trace_id:032x}"


def test_a_trace_is_found_by_id_prefix_and_request(writer: Writer, tmp_path: Path) -> None:
    trace_id = write_request(writer.tracer, "req-1")
    write_request(writer.tracer, "req-2")
    for name in (trace_id, trace_id.upper(), trace_id[:6], "req-1"):
        assert [span.name for span in read_trace(tmp_path, name)] == ["forerun.request", "route"], name
    assert read_trace(tmp_path, trace_id[:5]) == []
    assert read_trace(tmp_path, "req") == []
    assert read_trace(tmp_path, "f" * 32) == []
    assert read_trace(tmp_path / "absent", trace_id) == []


def test_everything_about_a_span_is_kept(writer: Writer, tmp_path: Path) -> None:
    request, route = read_trace(tmp_path, write_request(writer.tracer, "req-1"))
    assert (request.kind, request.service, request.process_id) == ("server", "router", os.getpid())
    assert (request.status, request.status_message) == ("error", "lost")
    assert request.attributes == {REQUEST_ID: "req-1", "counts": [1, 2]}
    assert [(event.name, event.attributes) for event in request.events] == [("first token", {"tokens": 1})]
    assert request.parent_span_id is None
    assert route.parent_span_id == request.span_id
    assert request.start_ns <= route.start_ns <= route.end_ns <= request.end_ns
    assert request.seconds == (request.end_ns - request.start_ns) / 1e9


def test_the_genai_response_id_is_a_request_id_too(writer: Writer, tmp_path: Path) -> None:
    trace_id = write_request(writer.tracer, 'odd "ünï" id', GEN_AI_RESPONSE_ID)
    assert read_trace(tmp_path, 'odd "ünï" id')[0].trace_id == trace_id


def test_of_several_traces_of_one_request_id_the_newest_counts(writer: Writer, tmp_path: Path) -> None:
    write_request(writer.tracer, "again")
    newest = write_request(writer.tracer, "again")
    assert {span.trace_id for span in read_trace(tmp_path, "again")} == {newest}


def test_spans_of_all_processes_are_merged(writer: Writer, tmp_path: Path) -> None:
    trace_id = write_request(writer.tracer, "req-1")
    template = json.loads((tmp_path / f"router-{os.getpid()}.jsonl").read_text().splitlines()[0])
    other = template | {"span_id": "00000000000000aa", "service": "scheduler", "name": "admission", "start_ns": 1}
    (tmp_path / "scheduler-4242.jsonl").write_text(json.dumps(other) + "\n" + json.dumps(other) + "\n")
    assert [span.name for span in read_trace(tmp_path, trace_id)] == ["admission", "forerun.request", "route"]


def test_an_ambiguous_prefix_is_told(writer: Writer, tmp_path: Path) -> None:
    write_request(writer.tracer, "req-1")
    line = json.loads((tmp_path / f"router-{os.getpid()}.jsonl").read_text().splitlines()[0])
    two = [line | {"trace_id": "abcdef" + str(digit) * 26} for digit in (1, 2)]
    (tmp_path / "stage-7.jsonl").write_text("".join(json.dumps(record) + "\n" for record in two))
    with pytest.raises(AmbiguousTraceIdError, match=r"fits 2 traces: abcdef1111.*abcdef2222.*more digits"):
        read_trace(tmp_path, "abcdef")
    assert len(read_trace(tmp_path, "abcdef1")) == 1


def test_lines_that_a_crash_cut_short_are_passed_over(writer: Writer, tmp_path: Path) -> None:
    trace_id = write_request(writer.tracer, "req-1")
    path = tmp_path / f"router-{os.getpid()}.jsonl"
    whole = path.read_bytes()
    path.write_bytes(b"\xff\xfe\n[1]\n{}\n" + whole + whole.splitlines()[0][:-9])
    assert len(read_trace(tmp_path, trace_id)) == 2


def test_files_stay_within_the_bound_and_rotation_is_counted(tmp_path: Path) -> None:
    bound = 64 * 1024
    writer = Writer(tmp_path, max_bytes=bound)
    written = [write_request(writer.tracer, f"req-{number}") for number in range(400)]
    files = sorted(tmp_path.glob("*.jsonl"))
    assert [path.name for path in files] == [f"router-{os.getpid()}.1.jsonl", f"router-{os.getpid()}.jsonl"]
    assert bound // 4 < sum(path.stat().st_size for path in files) <= bound
    assert read_trace(tmp_path, written[-1])
    assert not read_trace(tmp_path, written[0])
    kept = sum(len(path.read_text().splitlines()) for path in files)
    assert writer.drops.total == 2 * len(written) - kept > 0


def test_a_span_larger_than_a_file_is_dropped_and_counted(tmp_path: Path) -> None:
    writer = Writer(tmp_path, max_bytes=64 * 1024)
    write_request(writer.tracer, "x" * 40_000)
    assert writer.drops.total == 1
    assert len((tmp_path / f"router-{os.getpid()}.jsonl").read_text().splitlines()) == 1


def test_a_refusing_disk_fails_the_batch_and_not_the_next(tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    folder.write_text("a file where the folder should be")
    writer = Writer(folder)
    assert writer.exporter.export([an_ended_span()]) is SpanExportResult.FAILURE
    folder.unlink()
    assert writer.exporter.export([an_ended_span()]) is SpanExportResult.SUCCESS
    assert len(list(folder.glob("*.jsonl"))) == 1


def test_a_folder_tidied_up_by_someone_is_written_anew(writer: Writer, tmp_path: Path) -> None:
    write_request(writer.tracer, "req-1")
    for path in tmp_path.glob("*.jsonl"):
        path.unlink()
    assert read_trace(tmp_path, write_request(writer.tracer, "req-2"))


def test_the_oldest_files_of_dead_processes_are_removed(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    for age, name in enumerate([f"router-{dead.pid}.jsonl", f"router-{dead.pid}.1.jsonl"]):
        (tmp_path / name).write_bytes(b"x" * 50_000)
        os.utime(tmp_path / name, (1000 - age, 1000 - age))
    kept = [f"router-{os.getppid()}.jsonl", f"scheduler-{dead.pid}.jsonl", "router-notes.jsonl"]
    for name in kept:
        (tmp_path / name).write_bytes(b"x" * 200_000)
    write_request(Writer(tmp_path, max_bytes=64 * 1024).tracer, "req-1")
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {*kept, f"router-{dead.pid}.jsonl", f"router-{os.getpid()}.jsonl"}


class _Keep(SpanExporter):
    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def export(self, spans):
        self.spans += spans
        return SpanExportResult.SUCCESS


def an_ended_span() -> ReadableSpan:
    keep = _Keep()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(keep))
    provider.get_tracer("test").start_span("one").end()
    return keep.spans[0]
