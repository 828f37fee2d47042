"""Draws a trace: one row a span with its place in time as a bar, attributes below on request."""

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from services.cli.block_ribbon import block_ribbon
from services.cli.trace_tree import TreeRow, tree_rows
from services.common.trace_names import OUTCOME, SPAN_SPEC_BLOCK, STAGE
from services.common.trace_store import StoredSpan

MIN_BAR_WIDTH = 10
MAX_BAR_WIDTH = 100
TIME_WIDTH = 10
SHOWN_BLOCKS = 3
"""Blocks of speculation that are drawn unless all are asked for; there are dozens."""

STATUS_STYLES = {"error": "red", "ok": "green"}


def render_trace(spans: Sequence[StoredSpan], width: int, *, attributes: bool, blocks: bool = False) -> RenderableType:
    """The whole trace, at most ``width`` columns wide as far as names allow."""
    shown = spans if blocks else _first_blocks(spans)
    lines = list(_lines(tree_rows(shown), width, attributes=attributes))
    if hidden := len(spans) - len(shown):
        lines.append(Text(f"{hidden} more spans of blocks of speculation; --blocks draws them", "dim"))
    ribbon = block_ribbon(spans, blocks=blocks)
    return Group(_summary(spans), *lines, *([] if ribbon is None else [ribbon]))


def duration(seconds: float) -> str:
    """Three digits and a unit: ``1.23 ms``."""
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 1:
        return f"{seconds * 1e3:.{1 if seconds < 0.1 else 0}f} ms"
    return f"{seconds:.2f} s"


def _first_blocks(spans: Sequence[StoredSpan]) -> list[StoredSpan]:
    blocks = [span.span_id for span in spans if span.name == SPAN_SPEC_BLOCK]
    hidden = set(blocks[SHOWN_BLOCKS:])
    return [span for span in spans if not hidden & {span.span_id, span.parent_span_id}]


def _summary(spans: Sequence[StoredSpan]) -> Text:
    start, end = _extent(spans)
    services = ", ".join(sorted({span.service for span in spans}))
    return Text.assemble(
        ("trace ", "dim"), (spans[0].trace_id, "bold"),
        (f"  {len(spans)} spans, {duration((end - start) / 1e9)}, {services}", "dim"),
    )  # fmt: skip


def _lines(rows: Sequence[TreeRow], width: int, *, attributes: bool) -> Iterator[Text]:
    start, end = _extent([row.span for row in rows])
    name_width = max(len(row.prefix) + len(_label(row.span)) for row in rows)
    service_width = max(len(row.span.service) for row in rows)
    free = width - name_width - service_width - TIME_WIDTH - 6
    bar_width = min(MAX_BAR_WIDTH, max(MIN_BAR_WIDTH, free))
    for row in rows:
        span = row.span
        style = STATUS_STYLES["error"] if span.status == "error" else "bold"
        line = Text(no_wrap=True)
        line.append(row.prefix, "dim").append(_label(span), style)
        line.append(" " * (name_width - len(row.prefix) - len(_label(span))))
        line.append(f"  {span.service:<{service_width}}", "cyan")
        line.append(f"  {duration(span.seconds):>{TIME_WIDTH - 2}}  ")
        line.append(_bar(span, start, end, bar_width), "red" if span.status == "error" else "blue")
        yield line
        yield from _notes(row, attributes=attributes)


def _label(span: StoredSpan) -> str:
    """The name, with the stage where several do the same."""
    stage = span.attributes.get(STAGE)
    return span.name if stage is None else f"{span.name} {stage}"


def _notes(row: TreeRow, *, attributes: bool) -> Iterator[Text]:
    span = row.span
    outcome = span.attributes.get(OUTCOME)
    if span.status == "error":
        reason = span.status_message or str(outcome or "error")
        yield Text.assemble((row.rails, "dim"), (reason, "red"))
    if row.is_orphan:
        yield Text.assemble((row.rails, "dim"), (f"its parent {span.parent_span_id} is not in these files", "yellow"))
    if attributes:
        for name, value in sorted(span.attributes.items()):
            yield Text.assemble((row.rails, "dim"), (f"{name} = ", "dim"), str(value))
        for event in span.events:
            offset = duration((event.time_ns - span.start_ns) / 1e9)
            details = "".join(f" {name}={value}" for name, value in sorted(event.attributes.items()))
            yield Text.assemble((row.rails, "dim"), (f"+{offset} ", "magenta"), event.name, (details, "dim"))


def _bar(span: StoredSpan, start: int, end: int, width: int) -> str:
    """The span's share of the trace's time, at least one mark wide."""
    scale = width / max(1, end - start)
    left = min(width - 1, int((span.start_ns - start) * scale))
    length = max(1, min(width - left, round((span.end_ns - span.start_ns) * scale)))
    return " " * left + "━" * length


def _extent(spans: Sequence[StoredSpan]) -> tuple[int, int]:
    return min(span.start_ns for span in spans), max(span.end_ns for span in spans)
