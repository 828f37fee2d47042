"""The stage × time picture of one request, from the recorded ``stage.steps`` spans. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from services.common import trace_names as names
from services.common.row_kind import RowKind
from services.common.trace_store import StoredSpan


class NoPictureError(Exception):
    """The trace has nothing to draw; the message says why."""


@dataclass(frozen=True, slots=True)
class Box:
    """One step on one stage. Milliseconds since the picture's start."""

    step: int
    began_ms: float
    model_ms: float
    """Forward pass and, on the last stage, sampling."""
    draft_ms: float
    """Drafting, which follows."""
    requests: int
    tokens: int
    """Of all requests in the step."""
    kind: RowKind
    """What the request's own row was."""
    position: int
    """Of the row's first token in the text; -1 without a row."""

    @property
    def ended_ms(self) -> float:
        """When the stage was free again."""
        return self.began_ms + self.model_ms + self.draft_ms


@dataclass(frozen=True, slots=True)
class Lane:
    """One stage, its steps by time."""

    stage: int
    boxes: tuple[Box, ...]

    def shares(self) -> tuple[float, float, float]:
        """Of the time from its first step to its last: in the model, drafting, and in bubbles; they add up to 1."""
        lasted = self.boxes[-1].ended_ms - self.boxes[0].began_ms
        if lasted <= 0:
            return 1.0, 0.0, 0.0
        model = sum(box.model_ms for box in self.boxes) / lasted
        draft = sum(box.draft_ms for box in self.boxes) / lasted
        return model, draft, max(0.0, 1 - model - draft)


@dataclass(frozen=True, slots=True)
class Miss:
    """A draft was wrong: known when the last stage had sampled in its place."""

    at_ms: float
    position: int
    """Of the wrong token in the text."""


@dataclass(frozen=True, slots=True)
class Picture:
    """Everything that is drawn."""

    trace_id: str
    request_id: str
    lanes: tuple[Lane, ...]
    misses: tuple[Miss, ...]
    steps_before: int
    """Earlier steps of the request that were not kept."""
    speculation: Mapping[str, Any]
    """Attributes of the request's sum of blocks; empty when it did not speculate."""
    other_choices: int
    """Further answers of the same request, not drawn."""

    @property
    def lasted_ms(self) -> float:
        """To the end of the last step."""
        return max(lane.boxes[-1].ended_ms for lane in self.lanes)

    @property
    def typical_box_ms(self) -> float:
        """Median time of one step on one stage."""
        return median(box.model_ms + box.draft_ms for lane in self.lanes for box in lane.boxes)

    def of_steps(self, first: int, last: int | None) -> "Picture":
        """Only those steps, counted from 1, to the end for None; times start anew. ``NoPictureError`` for none."""
        numbers = {box.step for box in self.lanes[0].boxes[max(0, first - 1) : last]}
        lanes = [Lane(lane.stage, tuple(box for box in lane.boxes if box.step in numbers)) for lane in self.lanes]
        if not all(lane.boxes for lane in lanes):
            raise NoPictureError(
                f"the picture has {len(self.lanes[0].boxes)} steps, none of them in {first}:{last or ''}"
            )
        start = min(lane.boxes[0].began_ms for lane in lanes)
        end = max(lane.boxes[-1].ended_ms for lane in lanes)
        shifted = tuple(_shifted(lane, start) for lane in lanes)
        misses = (replace(miss, at_ms=miss.at_ms - start) for miss in self.misses if start <= miss.at_ms <= end)
        return replace(self, lanes=shifted, misses=tuple(misses))


def picture_of(spans: Sequence[StoredSpan]) -> Picture:
    """From all spans of a trace. Raises ``NoPictureError``."""
    steps = [span for span in spans if span.name == names.SPAN_STEPS]
    if not steps:
        raise NoPictureError(
            "the trace has no steps to draw: the request reached no stage, or its replica has no stage processes"
        )
    request_ids = list(dict.fromkeys(str(span.attributes[names.REQUEST_ID]) for span in steps))
    own = [span for span in steps if span.attributes[names.REQUEST_ID] == request_ids[0]]
    start_ns = min(span.start_ns for span in own)
    lanes = tuple(_lane(span, start_ns) for span in sorted(own, key=lambda span: int(span.attributes[names.STAGE])))
    summaries = (span for span in spans if span.name == names.SPAN_SPEC_SUMMARY)
    speculation = (span.attributes for span in summaries if span.attributes[names.REQUEST_ID] == request_ids[0])
    return Picture(
        trace_id=own[0].trace_id,
        request_id=request_ids[0],
        lanes=lanes,
        misses=_misses(lanes[0], lanes[-1]),
        steps_before=int(own[0].attributes[names.STEPS_BEFORE]),
        speculation=next(speculation, {}),
        other_choices=len(request_ids) - 1,
    )


def _lane(span: StoredSpan, start_ns: int) -> Lane:
    columns = span.attributes
    offset_ms = (span.start_ns - start_ns) / 1e6
    boxes = [
        Box(
            step=number,
            began_ms=offset_ms + began_us / 1e3,
            model_ms=(busy_us - draft_us) / 1e3,
            draft_ms=draft_us / 1e3,
            requests=requests,
            tokens=tokens,
            kind=RowKind(letter),
            position=position,
        )
        for number, began_us, busy_us, draft_us, requests, tokens, letter, position in zip(
            columns[names.STEP_NUMBERS],
            columns[names.STEP_BEGAN_US],
            columns[names.STEP_BUSY_US],
            columns[names.STEP_DRAFT_US],
            columns[names.STEP_REQUESTS],
            columns[names.STEP_TOKENS],
            columns[names.STEP_ROWS],
            columns[names.STEP_POSITIONS],
            strict=True,
        )
    ]
    return Lane(int(columns[names.STAGE]), tuple(sorted(boxes, key=lambda box: box.began_ms)))


def _misses(first: Lane, last: Lane) -> tuple[Miss, ...]:
    """Each wrong draft, at the end of the row before it on the last stage, whose sample it is compared with."""
    ends = {box.step: box.ended_ms for box in last.boxes}
    misses, before = [], 0
    for box in first.boxes:
        if box.kind in _RIGHT:
            before = box.step
        elif box.kind is RowKind.MISSED and before in ends:
            misses.append(Miss(ends[before], box.position))
    return tuple(misses)


_RIGHT = (RowKind.PREFILL, RowKind.VERIFIED, RowKind.ACCEPTED)


def _shifted(lane: Lane, start_ms: float) -> Lane:
    return replace(lane, boxes=tuple(replace(box, began_ms=box.began_ms - start_ms) for box in lane.boxes))
