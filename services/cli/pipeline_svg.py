"""The pipeline picture as SVG: strips of time, one lane a stage, one box a step, thin lines from stage to stage.

Written with string templates; the file needs nothing but a browser. Every box tells its numbers when pointed at.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from html import escape

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

WIDTH, LEFT, RIGHT = 1280, 78, 24
LANE, LANE_GAP, STRIP_GAP, AXIS = 26, 12, 26, 20
HEADER = 128
BOX_WIDTH = 30
"""Of a typical step, so that a token's position fits into it."""

WIDEST_BOX = 90
"""A request of few steps is not stretched further."""

INK, PALE, GRID, BUBBLE_FILL, MISS_INK = "#1e293b", "#64748b", "#e2e8f0", "#eceff4", "#d7301f"

_HEAD = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"
 font-family="system-ui, 'Segoe UI', Helvetica, Arial, sans-serif" font-size="12" fill="{ink}">
<title>Pipeline of request {request}</title>
<defs>
<pattern id="drafting" width="4" height="4" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">
<rect width="4" height="4" fill="#ffffff" fill-opacity="0.18"/>
<rect width="1.6" height="4" fill="#ffffff" fill-opacity="0.6"/></pattern>
<pattern id="bubble" width="6" height="6" patternUnits="userSpaceOnUse">
<rect width="6" height="6" fill="{bubble}"/><circle cx="3" cy="3" r="1" fill="#9aa7b8"/></pattern>
</defs>
<rect width="{width}" height="{height}" fill="#ffffff"/>
"""


@dataclass(frozen=True, slots=True)
class _Scale:
    """Milliseconds to pixels, strip by strip."""

    px_per_ms: float
    strip_ms: float
    strip_height: float

    def pieces(self, began_ms: float, ended_ms: float) -> Iterator[tuple[int, float, float]]:
        """Where a stretch of time lies: (strip, left, right); more than one where it crosses a strip's end."""
        strip = int(began_ms / self.strip_ms)
        while strip * self.strip_ms < ended_ms or strip == int(began_ms / self.strip_ms):
            begin, end = max(began_ms, strip * self.strip_ms), min(ended_ms, (strip + 1) * self.strip_ms)
            yield strip, self.x(strip, begin), self.x(strip, end)
            strip += 1

    def x(self, strip: int, at_ms: float) -> float:
        return LEFT + (at_ms - strip * self.strip_ms) * self.px_per_ms

    def top(self, strip: int) -> float:
        return HEADER + strip * self.strip_height + AXIS

    def lane_top(self, strip: int, lane: int) -> float:
        return self.top(strip) + lane * (LANE + LANE_GAP)


def write_svg(picture: Picture) -> str:
    """The whole file."""
    scale, strips = _scale_of(picture)
    height = HEADER + strips * scale.strip_height
    head = _HEAD.format(
        width=WIDTH, height=f"{height:.0f}", ink=INK, bubble=BUBBLE_FILL, request=escape(picture.request_id)
    )
    body = [
        *_header(picture),
        *(part for strip in range(strips) for part in _axis(picture, scale, strip)),
        *(part for index, lane in enumerate(picture.lanes) for part in _background(scale, index, lane)),
        *_misses(picture, scale),
        *_connectors(picture, scale),
        *(part for index, lane in enumerate(picture.lanes) for box in lane.boxes for part in _box(scale, index, box)),
    ]
    return head + "\n".join(body) + "\n</svg>\n"


def _scale_of(picture: Picture) -> tuple[_Scale, int]:
    """A typical box gets ``BOX_WIDTH``, or more where the whole request fits into one strip."""
    inner = WIDTH - LEFT - RIGHT
    box_ms = max(1e-3, picture.typical_box_ms)
    px_per_ms = min(WIDEST_BOX / box_ms, max(BOX_WIDTH / box_ms, inner / picture.lasted_ms))
    strip_ms = inner / px_per_ms
    strip_height = AXIS + len(picture.lanes) * (LANE + LANE_GAP) + STRIP_GAP
    # A hair less, so that rounding does not make a strip of nothing.
    return _Scale(px_per_ms, strip_ms, strip_height), max(1, math.ceil(picture.lasted_ms / strip_ms - 1e-6))


def _header(picture: Picture) -> Iterator[str]:
    yield _text(16, 30, f"Pipeline of request {picture.request_id}", size=18, weight=600)
    yield _text(16, 50, f"{headline(picture)}  ·  trace {picture.trace_id}", fill=PALE)
    line = "  ·  ".join(stage_lines(picture))
    yield _text(16, 70, line)
    if counts := speculation_line(picture):
        yield _text(16, 88, counts)
    yield from _legend(picture)


def _legend(picture: Picture) -> Iterator[str]:
    entries = [(style.label, style.fill) for style in styles_shown(picture)]
    if shows_drafting(picture):
        entries.append(("drafting", "drafting"))
    entries.append(("bubble", "bubble"))
    x = 16.0
    for label, fill in entries:
        if fill == "drafting":
            yield _rect(x, 101, 14, 12, KIND_STYLES[RowKind.VERIFIED].fill)
        yield _rect(x, 101, 14, 12, f"url(#{fill})" if fill in ("drafting", "bubble") else fill)
        yield _text(x + 19, 111, label, fill=PALE)
        x += 32 + 6.4 * len(label)
    if picture.misses:
        yield f'<line x1="{x:.1f}" x2="{x:.1f}" y1="99" y2="114" stroke="{MISS_INK}" stroke-dasharray="3 2"/>'
        yield _text(x + 6, 111, "the miss is known", fill=PALE)


def _axis(picture: Picture, scale: _Scale, strip: int) -> Iterator[str]:
    top, lanes = scale.top(strip), len(picture.lanes)
    bottom = scale.lane_top(strip, lanes) - LANE_GAP
    begin, end = strip * scale.strip_ms, min((strip + 1) * scale.strip_ms, picture.lasted_ms)
    tick = _round_tick(90 / scale.px_per_ms)
    for index in range(math.ceil(begin / tick), int(end / tick) + 1):
        x = scale.x(strip, index * tick)
        yield f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top - 4:.1f}" y2="{bottom:.1f}" stroke="{GRID}"/>'
        yield _text(x + 3, top - 6, f"{index * tick:,g} ms", fill=PALE, size=10)
    for index, lane in enumerate(picture.lanes):
        y = scale.lane_top(strip, index) + LANE / 2 + 4
        yield _text(16, y, f"stage {lane.stage}", weight=600)


def _background(scale: _Scale, index: int, lane: Lane) -> Iterator[str]:
    """The time from the stage's first step to its last; what no box covers is a bubble."""
    for strip, left, right in scale.pieces(lane.boxes[0].began_ms, lane.boxes[-1].ended_ms):
        yield _rect(left, scale.lane_top(strip, index), right - left, LANE, "url(#bubble)", radius=0)


def _box(scale: _Scale, index: int, box: Box) -> Iterator[str]:
    style = KIND_STYLES[box.kind]
    is_own = box.kind not in (RowKind.ABSENT, RowKind.LEFT_OUT)
    inset = 0 if is_own else 4
    yield f"<g><title>{escape(_tooltip(box, index))}</title>"
    for strip, left, right in scale.pieces(box.began_ms, box.ended_ms):
        y = scale.lane_top(strip, index) + inset
        width = max(1.0, right - left - 0.8)
        yield _rect(left, y, width, LANE - 2 * inset, style.fill)
        label = str(box.position)
        if is_own and width > 7 * len(label) + 2:
            yield _text(left + 4, y + LANE / 2 + 4, label, fill=style.ink, size=11)
    if box.draft_ms:
        for strip, left, right in scale.pieces(box.ended_ms - box.draft_ms, box.ended_ms):
            width = max(1.0, right - left - 0.8)
            yield _rect(left, scale.lane_top(strip, index) + inset, width, LANE - 2 * inset, "url(#drafting)")
    yield "</g>"


def _tooltip(box: Box, stage: int) -> str:
    lines = [f"step {box.step} on stage {stage}: {KIND_STYLES[box.kind].label}"]
    if box.position >= 0:
        lines.append(f"position {box.position} of the text")
    lines.append(f"from {box.began_ms:.1f} ms to {box.ended_ms:.1f} ms")
    lines.append(f"model {box.model_ms:.2f} ms" + (f", drafting {box.draft_ms:.2f} ms" if box.draft_ms else ""))
    lines.append(f"batch: {box.requests} requests, {box.tokens} tokens run")
    return "\n".join(lines)


def _connectors(picture: Picture, scale: _Scale) -> Iterator[str]:
    """From the end of the request's row on one stage to its begin on the next."""
    for index, (upper, lower) in enumerate(zip(picture.lanes, picture.lanes[1:], strict=False)):
        begins = {box.step: box for box in lower.boxes}
        for box in upper.boxes:
            if box.kind in (RowKind.ABSENT, RowKind.LEFT_OUT) or box.step not in begins:
                continue
            left_ms, next_box = box.began_ms + box.model_ms, begins[box.step]
            strip = int(left_ms / scale.strip_ms)
            if int(next_box.began_ms / scale.strip_ms) != strip:
                continue
            x1, x2 = scale.x(strip, left_ms), scale.x(strip, next_box.began_ms)
            y1, y2 = scale.lane_top(strip, index) + LANE, scale.lane_top(strip, index + 1)
            colour = KIND_STYLES[box.kind].fill
            yield (
                f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" stroke-width="1.4"/>'
            )


def _misses(picture: Picture, scale: _Scale) -> Iterator[str]:
    for miss in picture.misses:
        strip = min(int(miss.at_ms / scale.strip_ms), int(picture.lasted_ms / scale.strip_ms))
        x, top = scale.x(strip, miss.at_ms), scale.top(strip)
        bottom = scale.lane_top(strip, len(picture.lanes)) - LANE_GAP + 6
        yield f"<g><title>the draft at position {miss.position} was wrong</title>"
        yield (
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top - 3:.1f}" y2="{bottom:.1f}" stroke="{MISS_INK}" '
            'stroke-width="1.2" stroke-dasharray="3 2"/>'
        )
        yield f'<circle cx="{x:.1f}" cy="{bottom:.1f}" r="2.6" fill="{MISS_INK}"/></g>'


def _rect(x: float, y: float, width: float, height: float, fill: str, radius: float = 2) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="{radius:g}" fill="{fill}"/>'


def _text(x: float, y: float, text: str, *, fill: str = INK, size: int = 12, weight: int = 400) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" font-weight="{weight}" fill="{fill}">{escape(text)}</text>'
    )


def _round_tick(at_least: float) -> float:
    """1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(at_least))
    steps: Iterable[float] = (1, 2, 5, 10)
    return next(step * power for step in steps if step * power >= at_least - 1e-12)
