"""Spans in local files, one JSON object a line: written by a bounded exporter, read back by id.

Each process writes ``<service>-<pid>.jsonl``; when that holds half of the byte limit it becomes
``<service>-<pid>.1.jsonl`` and the previous one of that name is thrown away.
"""

import json
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from opentelemetry import trace
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from services.common.span_pipeline import SpanDrops
from services.common.trace_names import GEN_AI_RESPONSE_ID, REQUEST_ID

MIN_TRACE_ID_PREFIX = 6


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """Something that happened inside a span."""

    name: str
    time_ns: int
    attributes: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class StoredSpan:
    """A span as read back. Times are nanoseconds since the epoch; ids hexadecimal."""

    trace_id: str
    span_id: str
    parent_span_id: str | None
    name: str
    kind: str
    service: str
    process_id: int
    start_ns: int
    end_ns: int
    status: str
    """``unset``, ``ok`` or ``error``."""
    status_message: str
    attributes: Mapping[str, Any]
    events: tuple[StoredEvent, ...] = ()

    @property
    def seconds(self) -> float:
        """How long it took."""
        return (self.end_ns - self.start_ns) / 1e9


class AmbiguousTraceIdError(Exception):
    """A prefix that more than one trace starts with; the message lists them."""


class FileSpanExporter(SpanExporter):
    """Appends spans to this process's file; never more than ``max_bytes`` on disk per process."""

    def __init__(self, traces_dir: Path, service: str, max_bytes: int, drops: SpanDrops) -> None:
        self._path = traces_dir / f"{service}-{os.getpid()}.jsonl"
        self._older_path = traces_dir / f"{service}-{os.getpid()}.1.jsonl"
        self._service = service
        self._max_file_bytes = max_bytes // 2
        self._drops = drops
        self._lock = threading.Lock()
        self._file: BinaryIO | None = None
        self._spans_in_file = 0
        self._spans_in_older = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Writes the spans through to the file. Loses and counts them when the disk refuses."""
        with self._lock:
            try:
                for span in spans:
                    self._write(_line(span, self._service))
                if self._file is not None:
                    self._file.flush()
            except OSError:
                # The disk is full or the folder is gone: this batch may be lost, the next one starts afresh.
                self._abandon()
                return SpanExportResult.FAILURE
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        """Closes the file."""
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None

    def force_flush(self, timeout_millis: int = 30_000) -> bool:  # noqa: ARG002  (the interface's signature)
        """Every export is written through already."""
        return True

    def _write(self, line: bytes) -> None:
        if len(line) > self._max_file_bytes:
            self._drops.add("too-large", 1)
            return
        file = self._open()
        if file.tell() + len(line) > self._max_file_bytes:
            file = self._rotate()
        file.write(line)
        self._spans_in_file += 1

    def _open(self) -> BinaryIO:
        if self._file is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("ab")
        return self._file

    def _rotate(self) -> BinaryIO:
        self._open().close()
        self._file = None
        self._drops.add("rotated", self._spans_in_older)
        self._path.replace(self._older_path)
        self._spans_in_older, self._spans_in_file = self._spans_in_file, 0
        return self._open()

    def _abandon(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            # Closing flushes, and fails for the same reason as the write did.
            with suppress(OSError):
                file.close()


def _line(span: ReadableSpan, service: str) -> bytes:
    context = span.get_span_context()
    if context is None:
        raise ValueError("a span without a context cannot be stored")
    record = {
        "trace_id": trace.format_trace_id(context.trace_id),
        "span_id": trace.format_span_id(context.span_id),
        "parent_span_id": trace.format_span_id(span.parent.span_id) if span.parent else None,
        "name": span.name,
        "kind": span.kind.name.lower(),
        "service": service,
        "process_id": os.getpid(),
        "start_ns": span.start_time,
        "end_ns": span.end_time,
        "status": span.status.status_code.name.lower(),
        "status_message": span.status.description or "",
        "attributes": dict(span.attributes or {}),
        "events": [_event(event) for event in span.events],
    }
    return json.dumps(record, separators=(",", ":"), default=str).encode() + b"\n"


def _event(event: Event) -> dict[str, Any]:
    return {"name": event.name, "time_ns": event.timestamp, "attributes": dict(event.attributes or {})}


def read_trace(traces_dir: Path, id: str) -> list[StoredSpan]:
    """All spans of one trace, by start time; empty when nothing is known of ``id``.

    ``id`` is a trace id, a prefix of one (at least six digits), or a request id; of several traces of one request
    id the newest is taken. Raises ``AmbiguousTraceIdError`` when a prefix fits several traces.
    """
    trace_id = _trace_id_of_request(traces_dir, id) or _trace_id_of_prefix(traces_dir, id)
    if trace_id is None:
        return []
    spans = {span.span_id: span for span in _spans(traces_dir, trace_id) if span.trace_id == trace_id}
    return sorted(spans.values(), key=lambda span: (span.start_ns, span.end_ns))


def _trace_id_of_prefix(traces_dir: Path, prefix: str) -> str | None:
    prefix = prefix.lower()
    if len(prefix) < MIN_TRACE_ID_PREFIX or prefix.strip("0123456789abcdef"):
        return None
    found = {span.trace_id for span in _spans(traces_dir, prefix) if span.trace_id.startswith(prefix)}
    if len(found) > 1:
        raise AmbiguousTraceIdError(
            f"{prefix} fits {len(found)} traces: {', '.join(sorted(found)[:5])}; give more digits"
        )
    return next(iter(found), None)


def _trace_id_of_request(traces_dir: Path, request_id: str) -> str | None:
    newest: StoredSpan | None = None
    for span in _spans(traces_dir, json.dumps(request_id)):
        is_match = request_id in (span.attributes.get(GEN_AI_RESPONSE_ID), span.attributes.get(REQUEST_ID))
        if is_match and (newest is None or span.start_ns > newest.start_ns):
            newest = span
    return newest.trace_id if newest else None


def _spans(traces_dir: Path, needle: str) -> Iterator[StoredSpan]:
    """Spans of all files whose line contains ``needle``; lines that a crash cut short are passed over."""
    marker = needle.encode()
    for path in sorted(traces_dir.glob("*.jsonl")):
        try:
            file = path.open("rb")
        except FileNotFoundError:
            # Rotated away between listing and opening.
            continue
        with file:
            for line in file:
                if marker in line and (span := _parse(line)) is not None:
                    yield span


def _parse(line: bytes) -> StoredSpan | None:
    try:
        record = json.loads(line)
        events = tuple(StoredEvent(**event) for event in record.pop("events"))
        return StoredSpan(**record, events=events)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
