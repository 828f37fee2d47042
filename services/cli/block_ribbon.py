"""Draws what became of the drafts of a request's blocks: one line a block, one mark a draft token."""

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from services.common import trace_names as names
from services.common.trace_store import StoredSpan

SHOWN_BLOCKS = 20
"""Drawn unless all are asked for."""

ACCEPTED, WASTED, NOT_DRAFTED = ("■", "green"), ("□", "red"), ("·", "dim")


def block_ribbon(spans: Sequence[StoredSpan], *, blocks: bool = False) -> RenderableType | None:
    """Of the blocks that experts drafted; None where there are none.

    Args:
        spans: of one trace.
        blocks: draw all of them.
    """
    drawn = sorted((span for span in spans if _is_of_expert(span)), key=lambda span: span.start_ns)
    if not drawn:
        return None
    shown = drawn if blocks else drawn[:SHOWN_BLOCKS]
    lines = [_legend(), *map(_line, shown)]
    if hidden := len(drawn) - len(shown):
        lines.append(Text(f"{hidden} more blocks; --blocks draws them", "dim"))
    return Group(*lines)


def _is_of_expert(span: StoredSpan) -> bool:
    return span.name == names.SPAN_SPEC_BLOCK and span.attributes.get(names.SPEC_METHOD) != names.METHOD_SP


def _legend() -> Text:
    parts: list[tuple[str, str]] = [("blocks  ", "dim")]
    for (mark, style), label in ((ACCEPTED, "accepted"), (WASTED, "wasted"), (NOT_DRAFTED, "asked for, not drafted")):
        parts += [(mark, style), (f" {label}  ", "dim")]
    return Text.assemble(*parts)


def _line(span: StoredSpan) -> Text:
    get = span.attributes.get
    counts = (names.SPEC_DEPTH, names.SPEC_DRAFTED, names.SPEC_ACCEPTED)
    asked, drafted, accepted = (int(str(get(name, 0))) for name in counts)
    line = Text(no_wrap=True)
    line.append(f"{get(names.SPEC_BLOCK_INDEX, '')!s:>5} ", "dim").append(f"{get(names.SPEC_METHOD, '')!s:<12}", "cyan")
    for (mark, style), count in ((ACCEPTED, accepted), (WASTED, drafted - accepted), (NOT_DRAFTED, asked - drafted)):
        line.append(mark * max(0, count), style)
    line.append(" " * max(1, 18 - asked))
    line.append(" ".join(_words(span)), "dim")
    return line


def _words(span: StoredSpan) -> Iterator[str]:
    get = span.attributes.get
    yield f"{get(names.SPEC_ACCEPTED, 0)} of {get(names.SPEC_DRAFTED, 0)}"
    if (expected := get(names.SPEC_EXPECTED_ACCEPTED)) is not None:
        yield f"(expected {float(str(expected)):.1f})"
    yield f"{get(names.SPEC_REASON, '')}"
    yield f"{span.seconds * 1e3:.1f} ms"
