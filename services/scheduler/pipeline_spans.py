"""The spans of one finished request's way through the pipeline: its steps by stage, its blocks of speculation. Pure.

Every span's times are the stages' own clocks.
"""

from collections.abc import Iterator, Sequence

from services.common import trace_names as names
from services.common.row_kind import RowKind
from services.scheduler.expert_spans import expert_spans
from services.scheduler.lookahead.gatekeeper import Start
from services.scheduler.pipeline_recorder import FinishedTrace
from services.scheduler.request_trace import RequestTrace
from services.scheduler.sp_block import Block, BlockEnd, Tally
from services.scheduler.sp_controller import StageTime
from services.scheduler.span_plan import AttributeValue, SpanPlan
from services.scheduler.step_record import Row, StepRecord


def spans_of(finished: FinishedTrace, stages: int) -> Iterator[SpanPlan]:
    """All spans of a request: its starts by policy, one for each stage, and of speculation the sum and first blocks."""
    request = finished.request
    yield from (_admission_span(request.request_id, start) for start in request.admissions)
    for stage in range(stages):
        yield from _steps_of_stage(finished, stage, stages)
    yield from expert_spans(request.request_id, request.expert_blocks, request.expert_tally)
    if not request.tally.blocks:
        return
    blocks = [
        span
        for index, block in enumerate(request.blocks)
        if (span := _block_span(request, index, block, stages)) is not None
    ]
    yield from _summary(finished, stages)
    yield from blocks


def left_out_spans(finished: FinishedTrace) -> int:
    """Spans that the request's blocks beyond the cap would have had."""
    request = finished.request
    return 3 * (request.tally.blocks - len(request.blocks) + request.expert_tally.blocks - len(request.expert_blocks))


def _admission_span(request_id: str, start: Start) -> SpanPlan:
    return SpanPlan(
        names.SPAN_ADMISSION_DECISION,
        start.started_ns if start.held_back_ns is None else start.held_back_ns,
        start.started_ns,
        {
            names.REQUEST_ID: request_id,
            names.ADMISSION_REASON: start.decision.reason.value,
            names.ADMISSION_PEAK_BLOCKS: round(start.decision.peak, 1),
            names.ADMISSION_CAPACITY_BLOCKS: start.capacity,
            names.ADMISSION_SAFE_IN: start.decision.delay,
            names.ADMISSION_GAIN: round(min(start.decision.gain, 1e6), 3),
        },
    )


def _steps_of_stage(finished: FinishedTrace, stage: int, stages: int) -> Iterator[SpanPlan]:
    request_id = finished.request.request_id
    steps = [(step, time) for step in finished.steps if (time := step.stage(stage)) is not None]
    if not steps:
        return
    start = min(time.began_ns for _, time in steps)
    rows = [step.rows.get(request_id) for step, _ in steps]
    yield SpanPlan(
        names.SPAN_STEPS,
        start,
        max(time.ended_ns for _, time in steps),
        {
            names.REQUEST_ID: request_id,
            names.STAGE: stage,
            names.STEPS_BEFORE: finished.steps_before,
            names.STEP_NUMBERS: [step.number for step, _ in steps],
            names.STEP_BEGAN_US: [(time.began_ns - start) // 1000 for _, time in steps],
            names.STEP_BUSY_US: [round(1000 * time.busy_ms) for _, time in steps],
            names.STEP_DRAFT_US: [round(1000 * time.draft_ms) for _, time in steps],
            names.STEP_REQUESTS: [step.requests for step, _ in steps],
            names.STEP_TOKENS: [time.rows for _, time in steps],
            names.STEP_ROWS: "".join(
                RowKind.ABSENT if row is None else row.kind_on(is_last=stage == stages - 1) for row in rows
            ),
            names.STEP_POSITIONS: [-1 if row is None else row.position for row in rows],
        },
    )


def _summary(finished: FinishedTrace, stages: int) -> Iterator[SpanPlan]:
    request = finished.request
    times = [time for step in finished.steps for time in step.stages if time is not None]
    if not times:
        return
    yield SpanPlan(
        names.SPAN_SPEC_SUMMARY,
        min(time.began_ns for time in times),
        max(time.ended_ns for time in times),
        {
            names.REQUEST_ID: request.request_id,
            names.SPEC_METHOD: names.METHOD_SP,
            names.SPEC_DEPTH: stages - 1,
            names.SPEC_BLOCKS: request.tally.blocks,
            names.SPEC_BLOCKS_LEFT_OUT: request.tally.blocks - len(request.blocks),
            **_counts(request.tally),
        },
    )


def _block_span(request: RequestTrace, index: int, block: Block, stages: int) -> SpanPlan | None:
    """None when the stages' times are not known."""
    last = stages - 1
    draft = _part(names.SPAN_SPEC_DRAFT, _times(block.rows, 0, last), 0)
    emitted = [each for each in block.rows if each[1].is_emitted]
    verify = _part(names.SPAN_SPEC_VERIFY, _times(emitted, last, last), last)
    if draft is None or verify is None:
        return None
    tally = block.tally()
    attributes: dict[str, AttributeValue] = {
        names.REQUEST_ID: request.request_id,
        names.SPEC_METHOD: names.METHOD_SP,
        names.SPEC_DEPTH: last,
        names.SPEC_BLOCK_INDEX: index,
        **_counts(tally),
        names.SPEC_REASON: block.end.value,
        names.SPEC_BATCH_SIZE: round(sum(step.requests for step, _ in block.rows) / len(block.rows), 2),
        names.SPEC_STAGE_SECONDS: [
            sum(time.busy_ms for _, time in _times(block.rows, stage, last)) / 1e3 for stage in range(stages)
        ],
    }
    if block.end is BlockEnd.MISS:
        attributes[names.SPEC_FIRST_REJECTED] = tally.accepted + 1
    if block.confidences:
        attributes[names.SPEC_CONFIDENCE_MEAN] = sum(block.confidences) / len(block.confidences)
        attributes[names.SPEC_CONFIDENCE_MIN] = min(block.confidences)
    ends = [draft.end_ns, verify.end_ns]
    return SpanPlan(names.SPAN_SPEC_BLOCK, draft.start_ns, max(ends), attributes, (draft, verify))


def _times(rows: Sequence[tuple[StepRecord, Row]], stage: int, last: int) -> list[tuple[int, StageTime]]:
    """The numbers and times of the steps in which a stage ran rows; those that it left out took no part."""
    return [
        (step.number, time)
        for step, row in rows
        if row.kind_on(is_last=stage == last) is not RowKind.LEFT_OUT and (time := step.stage(stage)) is not None
    ]


def _part(name: str, steps: Sequence[tuple[int, StageTime]], stage: int) -> SpanPlan | None:
    """The block on one stage."""
    if not steps:
        return None
    times = [time for _, time in steps]
    attributes: dict[str, AttributeValue] = {
        names.STAGE: stage,
        names.STEPS: len(times),
        names.BUSY_SECONDS: sum(time.busy_ms for time in times) / 1e3,
        names.STEP_NUMBERS: [number for number, _ in steps],
    }
    if stage == 0:
        attributes[names.DRAFT_SECONDS] = sum(time.draft_ms for time in times) / 1e3
    return SpanPlan(name, min(time.began_ns for time in times), max(time.ended_ns for time in times), attributes)


def _counts(tally: Tally) -> dict[str, AttributeValue]:
    return {
        names.SPEC_DRAFTED: tally.drafted,
        names.SPEC_ACCEPTED: tally.accepted,
        names.SPEC_EMITTED: tally.emitted,
        names.SPEC_DROPPED: tally.dropped,
        names.SPEC_FLUSHED: tally.flushed,
    }
