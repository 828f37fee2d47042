"""Spans as a tree, whatever order, gaps or nonsense they come in."""

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from services.cli.trace_render import duration, render_trace
from services.cli.trace_tree import tree_rows
from services.common.trace_names import STAGE
from services.common.trace_store import StoredEvent, StoredSpan

MS = 1_000_000


def span(span_id: str, parent: str | None, start_ms: int, end_ms: int, **fields: object) -> StoredSpan:
    defaults: dict[str, object] = {
        "trace_id": "t", "span_id": span_id, "parent_span_id": parent, "name": f"span-{span_id}", "kind": "internal",
        "service": "router", "process_id": 1, "start_ns": start_ms * MS, "end_ns": end_ms * MS, "status": "unset",
        "status_message": "", "attributes": {},
    }  # fmt: skip
    return StoredSpan(**(defaults | fields))  # type: ignore[arg-type]


def drawn(spans: list[StoredSpan], *, attributes: bool = False, width: int = 80) -> str:
    console = Console(width=width, force_terminal=False)
    with console.capture() as capture:
        console.print(render_trace(spans, width, attributes=attributes), soft_wrap=True)
    return capture.get()


def test_children_hang_under_their_parents_by_start_time() -> None:
    rows = tree_rows([span("c", "a", 5, 9), span("a", None, 0, 10), span("b", "a", 1, 4), span("d", "c", 6, 7)])
    assert [(row.prefix, row.span.span_id) for row in rows] == [("", "a"), ("├─ ", "b"), ("└─ ", "c"), ("   └─ ", "d")]
    assert not any(row.is_orphan for row in rows)


def test_a_span_whose_parent_is_missing_is_shown_and_says_so() -> None:
    rows = tree_rows([span("a", None, 0, 10), span("b", "lost", 1, 4)])
    assert [(row.span.span_id, row.is_orphan) for row in rows] == [("a", False), ("b", True)]
    assert "its parent lost is not in these files" in drawn([span("b", "lost", 1, 4)])


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(-1, 14)), min_size=1, max_size=13, unique_by=lambda t: t[0]))
def test_every_span_is_shown_exactly_once_whatever_the_parents_are(links: list[tuple[int, int]]) -> None:
    spans = [span(str(own), None if parent < 0 else str(parent), own, own + 1) for own, parent in links]
    rows = tree_rows(spans)
    assert sorted(row.span.span_id for row in rows) == sorted(one.span_id for one in spans)
    assert drawn(spans, attributes=True)


def test_bars_show_when_each_span_ran() -> None:
    lines = drawn([span("a", None, 0, 100), span("b", "a", 50, 100)]).splitlines()
    assert lines[0].startswith("trace t  2 spans, 100 ms")
    whole, half = (line.index("━") for line in lines[1:3])
    assert lines[1].count("━") > lines[2].count("━") > 0
    assert half > whole


def test_errors_stages_attributes_and_events_are_told() -> None:
    event = StoredEvent("first token", 3 * MS, {"n": 1})
    text = drawn(
        [span("a", None, 0, 10, status="error", status_message="the replica was lost", attributes={STAGE: 1, "x": "y"},
              events=(event,))],
        attributes=True,
    )  # fmt: skip
    assert "span-a 1" in text
    assert "the replica was lost" in text
    assert "x = y" in text
    assert "+3.0 ms first token n=1" in text
    assert "x = y" not in drawn([span("a", None, 0, 10, attributes={"x": "y"})])


def test_durations() -> None:
    shown = [duration(seconds) for seconds in (0, 12e-6, 1.25e-3, 0.0999, 0.25, 2.5, 100)]
    assert shown == ["0 µs", "12 µs", "1.2 ms", "99.9 ms", "250 ms", "2.50 s", "100.00 s"]
