"""How the kinds of rows look in the pipeline picture, in a terminal and in SVG."""

from dataclasses import dataclass

from services.cli.pipeline_picture import Picture
from services.common import trace_names as names
from services.common.row_kind import RowKind


@dataclass(frozen=True, slots=True)
class KindStyle:
    """Of one kind of row."""

    label: str
    mark: str
    """One character, where colours are missing."""
    terminal: str
    """A style of rich."""
    fill: str
    ink: str
    """Of text on ``fill``."""


KIND_STYLES = {
    RowKind.PREFILL: KindStyle("prefill", "P", "magenta", "#8b7fc7", "#ffffff"),
    RowKind.VERIFIED: KindStyle("verified token", "V", "bold blue", "#2f6fde", "#ffffff"),
    RowKind.ACCEPTED: KindStyle("draft, accepted", "A", "green", "#2ca25f", "#ffffff"),
    RowKind.MISSED: KindStyle("draft, wrong", "M", "bold red", "#d7301f", "#ffffff"),
    RowKind.STALE: KindStyle("stale behind a miss", "S", "red", "#f4a89a", "#7f1d12"),
    RowKind.UNJUDGED: KindStyle("draft beyond the end", "U", "yellow", "#f2c14e", "#5c4400"),
    RowKind.LEFT_OUT: KindStyle("draft dropped, not run", "L", "bright_black", "#c9d1dc", "#475569"),
    RowKind.ABSENT: KindStyle("other requests only", "░", "bright_black", "#dbe1ea", "#64748b"),
}


def styles_shown(picture: Picture) -> list[KindStyle]:
    """Of the kinds of rows that the picture has."""
    present = {box.kind for lane in picture.lanes for box in lane.boxes}
    return [style for kind, style in KIND_STYLES.items() if kind in present]


def shows_drafting(picture: Picture) -> bool:
    """The first stage drafted in it."""
    return any(box.draft_ms for box in picture.lanes[0].boxes)


def headline(picture: Picture) -> str:
    """What the picture covers."""
    steps = len(picture.lanes[0].boxes)
    parts = [f"{len(picture.lanes)} stages", f"{steps} steps", f"{picture.lasted_ms:,.0f} ms"]
    if picture.steps_before:
        parts.append(f"the {picture.steps_before} steps before were not kept")
    if picture.other_choices:
        parts.append(f"{picture.other_choices} further choices not drawn")
    return ", ".join(parts)


def speculation_line(picture: Picture) -> str:
    """The request's drafts in numbers; empty when it did not speculate."""
    counts = picture.speculation
    if not counts:
        return ""
    drafted, accepted = counts[names.SPEC_DRAFTED], counts[names.SPEC_ACCEPTED]
    share = f" ({accepted / drafted:.0%})" if drafted else ""
    dropped, flushed = counts[names.SPEC_DROPPED], counts[names.SPEC_FLUSHED]
    return (
        f"speculation: {counts[names.SPEC_BLOCKS]} blocks, {drafted} drafted, {accepted} accepted{share}, "
        f"{counts[names.SPEC_EMITTED]} emitted, {dropped} dropped, {flushed} flushed"
    )


def stage_lines(picture: Picture) -> list[str]:
    """Where each stage's time went."""
    lines = []
    for lane in picture.lanes:
        model, draft, bubble = lane.shares()
        drafting = f", drafting {draft:.0%}" if draft else ""
        lines.append(f"stage {lane.stage}: model {model:.0%}{drafting}, bubbles {bubble:.0%}")
    return lines
