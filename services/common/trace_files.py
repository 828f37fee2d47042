"""Spans into local files, one JSON object a line, within a byte bound.

Each process writes ``<service>-<pid>.jsonl``; when that holds half of the bound it becomes
``<service>-<pid>.1.jsonl`` and the previous one of that name is thrown away. At its first write a process also
removes the oldest files of its service's dead processes, so that restarts do not fill the disk either.
"""

import json
import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import psutil
from opentelemetry import trace
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from services.common.span_pipeline import SpanDrops


class FileSpanExporter(SpanExporter):
    """Appends spans to this process's file; never more than ``max_bytes`` on disk, and as much of its predecessors."""

    def __init__(self, traces_dir: Path, service: str, max_bytes: int, drops: SpanDrops) -> None:
        self._path = traces_dir / f"{service}-{os.getpid()}.jsonl"
        self._older_path = traces_dir / f"{service}-{os.getpid()}.1.jsonl"
        self._service = service
        self._max_bytes = max_bytes
        self._drops = drops
        self._lock = threading.Lock()
        self._file: BinaryIO | None = None
        self._spans_in_file = 0
        self._spans_in_older = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Writes the spans through to the file; FAILURE when the disk refuses, which the next batch tries anew."""
        with self._lock:
            try:
                self._reopen_when_removed()
                for span in spans:
                    self._write(_line(span, self._service))
                if self._file is not None:
                    self._file.flush()
            except OSError:
                self._abandon()
                return SpanExportResult.FAILURE
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        """Closes the file."""
        with self._lock:
            self._abandon()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:  # noqa: ARG002  (the interface's signature)
        """Every export is written through already."""
        return True

    def _write(self, line: bytes) -> None:
        max_file_bytes = self._max_bytes // 2
        if len(line) > max_file_bytes:
            self._drops.add("too-large", 1)
            return
        file = self._open()
        if file.tell() + len(line) > max_file_bytes:
            file = self._rotate()
        file.write(line)
        self._spans_in_file += 1

    def _open(self) -> BinaryIO:
        if self._file is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            _remove_oldest(self._path.parent, self._service, self._max_bytes)
            self._file = self._path.open("ab")
        return self._file

    def _rotate(self) -> BinaryIO:
        self._abandon()
        self._path.replace(self._older_path)
        self._drops.add("rotated", self._spans_in_older)
        self._spans_in_older, self._spans_in_file = self._spans_in_file, 0
        return self._open()

    def _reopen_when_removed(self) -> None:
        """Someone who tidies the folder up must not make this process write into the void."""
        if self._file is not None and not self._path.exists():
            self._abandon()

    def _abandon(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            # Closing flushes, and may fail for the same reason as the write did.
            with suppress(OSError):
                file.close()


def _remove_oldest(traces_dir: Path, service: str, max_bytes: int) -> None:
    """Leaves at most ``max_bytes`` of files of this service's dead processes, the newest."""
    dead = []
    for path in traces_dir.glob(f"{service}-*.jsonl"):
        process_id = path.name.removeprefix(f"{service}-").split(".")[0]
        if process_id.isdecimal() and int(process_id) != os.getpid() and not psutil.pid_exists(int(process_id)):
            with suppress(FileNotFoundError):
                status = path.stat()
                dead.append((status.st_mtime_ns, status.st_size, path))
    kept_bytes = 0
    for _, size, path in sorted(dead, reverse=True):
        kept_bytes += size
        if kept_bytes > max_bytes:
            path.unlink(missing_ok=True)


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
