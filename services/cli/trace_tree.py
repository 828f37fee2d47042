"""Spans of one trace as a tree in reading order. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from services.common.trace_store import StoredSpan


@dataclass(frozen=True, slots=True)
class TreeRow:
    """One span and where it hangs."""

    span: StoredSpan
    prefix: str
    """Branches to draw before the name."""
    rails: str
    """Branches to draw before further lines of the same span."""
    is_orphan: bool
    """Its parent is named but absent: not shipped yet, dropped, or kept by another system."""


def tree_rows(spans: Sequence[StoredSpan]) -> list[TreeRow]:
    """Every span once, parents before children, siblings by start time."""
    known = {span.span_id for span in spans}
    children: dict[str | None, list[StoredSpan]] = {}
    for span in sorted(spans, key=lambda span: (span.start_ns, -span.end_ns)):
        parent = span.parent_span_id if span.parent_span_id in known else None
        children.setdefault(parent, []).append(span)
    rows: list[TreeRow] = []
    for root in children.get(None, []):
        rows += _subtree(root, "", "", children)
    shown = {row.span.span_id for row in rows}
    # Spans that name each other as parents hang nowhere; a broken writer must not hide them.
    rows += [TreeRow(span, "", "", is_orphan=True) for span in spans if span.span_id not in shown]
    return rows


def _subtree(
    span: StoredSpan, prefix: str, rails: str, children: dict[str | None, list[StoredSpan]]
) -> Iterator[TreeRow]:
    below = children.get(span.span_id, [])
    is_orphan = not prefix and span.parent_span_id is not None
    yield TreeRow(span, prefix, rails + ("│  " if below else "   "), is_orphan)
    for child in below:
        is_last = child is below[-1]
        yield from _subtree(
            child, rails + ("└─ " if is_last else "├─ "), rails + ("   " if is_last else "│  "), children
        )
