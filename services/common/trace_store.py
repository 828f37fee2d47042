"""Traces read back from the local files that ``trace_files`` describes, by trace id or request id."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.common.trace_files import FileSpanExporter
from services.common.trace_names import GEN_AI_RESPONSE_ID, REQUEST_ID

__all__ = ["AmbiguousTraceIdError", "FileSpanExporter", "StoredEvent", "StoredSpan", "read_trace"]

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
