"""The pipeline picture in a terminal: strips of time, one line a stage, one letter and a bar a step."""

import math
from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from services.cli.pipeline_picture import Box, Lane, Picture
from services.cli.pipeline_style import (
    KIND_STYLES,
    headline,
    shows_drafting,
    speculation_line,
    stage_lines,
    styles_shown,
)
from services.common.row_kind import RowKind

COLUMNS_A_BOX = 4
MAX_STRIPS = 12
LABEL_WIDTH = 9
BUBBLE, DRAFTING, MODEL = "·", "▒", "━"

Cell = tuple[str, str]
"""A character and its style."""


def render_picture(picture: Picture, width: int) -> RenderableType:
    """At most ``MAX_STRIPS`` strips of ``width`` columns."""
    column_ms = picture.typical_box_ms / COLUMNS_A_BOX
    columns = max(COLUMNS_A_BOX, width - LABEL_WIDTH)
    total = math.ceil(picture.lasted_ms / column_ms)
    strips = math.ceil(total / columns)
    cells = [_cells(lane, column_ms, total) for lane in picture.lanes]
    lines: list[Text] = [*_header(picture), Text()]
    for strip in range(min(strips, MAX_STRIPS)):
        begin, end = strip * columns, min(total, (strip + 1) * columns)
        lines.append(_axis(begin, end, column_ms))
        for lane, row in zip(picture.lanes, cells, strict=True):
            lines.append(_joined(f"stage {lane.stage}", row[begin:end]))
        lines.append(Text())
    if strips > MAX_STRIPS:
        shown = sum(box.began_ms < MAX_STRIPS * columns * column_ms for box in picture.lanes[0].boxes)
        lines.append(Text(f"… to step {shown}; --steps {shown + 1}: draws on, --svg FILE draws all", "dim"))
    return Group(*lines, _legend(picture))


def _header(picture: Picture) -> Iterator[Text]:
    yield Text.assemble(("request ", "dim"), (picture.request_id, "bold"), (f"  {headline(picture)}", "dim"))
    if line := speculation_line(picture):
        yield Text(line)
    yield Text("; ".join(stage_lines(picture)))


def _cells(lane: Lane, column_ms: float, total: int) -> list[Cell]:
    cells: list[Cell] = [(" ", "")] * total
    begin, end = (round(at_ms / column_ms) for at_ms in (lane.boxes[0].began_ms, lane.boxes[-1].ended_ms))
    cells[begin:end] = [(BUBBLE, "dim")] * (min(end, total) - begin)
    for box in lane.boxes:
        _draw(box, column_ms, cells)
    return cells


def _draw(box: Box, column_ms: float, cells: list[Cell]) -> None:
    style = KIND_STYLES[box.kind]
    fill = style.mark if box.kind is RowKind.ABSENT else MODEL
    begin = min(len(cells) - 1, round(box.began_ms / column_ms))
    end = min(len(cells), max(begin + 1, round(box.ended_ms / column_ms)))
    drafting = round(box.draft_ms / column_ms) if box.draft_ms else 0
    for column in range(begin, end):
        mark = style.mark if column == begin else DRAFTING if column >= end - drafting else fill
        cells[column] = (mark, style.terminal)


def _axis(begin: int, end: int, column_ms: float) -> Text:
    line = " " * LABEL_WIDTH
    for column in range(begin, end, 20):
        label = f"╷{column * column_ms:,.0f} ms"
        line = line.ljust(LABEL_WIDTH + column - begin) + label
    return Text(line, "dim", no_wrap=True)


def _joined(label: str, cells: list[Cell]) -> Text:
    line = Text(f"{label:<{LABEL_WIDTH}}", "dim", no_wrap=True)
    for mark, style in cells:
        line.append(mark, style)
    return line


def _legend(picture: Picture) -> Text:
    line = Text()
    for style in styles_shown(picture):
        line.append(style.mark, style.terminal).append(f" {style.label}   ", "dim")
    if shows_drafting(picture):
        line.append(DRAFTING).append(" drafting   ", "dim")
    return line.append(BUBBLE).append(" bubble", "dim")
