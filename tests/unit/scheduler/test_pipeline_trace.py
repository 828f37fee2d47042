"""Blocks are counted as they are defined, and a request's spans say so; an untraced request leaves nothing."""

import threading
from pathlib import Path

from prometheus_client import CollectorRegistry

from services.common import trace_names as names
from services.common.config import TelemetryConfig
from services.common.row_kind import RowKind
from services.common.trace_store import StoredSpan, read_trace
from services.common.tracing import is_sampled, setup_tracing
from services.scheduler.pipeline_recorder import MAX_STEPS, PipelineRecorder
from services.scheduler.pipeline_spans import spans_of
from services.scheduler.sp_block import BlockEnd, Tally
from services.scheduler.span_writer import MAX_WAITING, SpanWriter
from services.scheduler.step_record import Row
from tests.support.pipeline_play import REQUEST, TRACE_ID, TRACEPARENT, PipelinePlay, play_everything


def written(play: PipelinePlay, folder: Path) -> tuple[list[StoredSpan], CollectorRegistry]:
    registry = CollectorRegistry()
    writer = SpanWriter(setup_tracing("engine-core", TelemetryConfig(traces_dir=folder), registry), play.stages)
    writer.put(play.finished)
    writer.close()
    return read_trace(folder, TRACE_ID), registry


def test_blocks_end_by_a_miss_a_drop_and_the_request() -> None:
    request = play_everything().finished.request
    assert [block.end for block in request.blocks] == [BlockEnd.MISS, BlockEnd.DROPPED, BlockEnd.REQUEST_END]
    assert [block.tally() for block in request.blocks] == [
        Tally(blocks=1, drafted=3, accepted=2, emitted=3, dropped=0, flushed=1),
        Tally(blocks=1, drafted=0, accepted=0, emitted=1, dropped=1, flushed=0),
        Tally(blocks=1, drafted=1, accepted=1, emitted=2, dropped=0, flushed=1),
    ]
    assert request.tally == Tally(blocks=3, drafted=4, accepted=3, emitted=6, dropped=1, flushed=2)


def test_rows_behind_a_miss_are_stale_and_a_deeper_pipeline_has_more_of_them() -> None:
    play = PipelinePlay(stages=3)
    play.token(4)
    play.draft(5)
    play.draft(6)
    play.fail(BlockEnd.MISS)
    play.token(5)
    play.back()
    play.back()
    play.end()
    kinds = [step.rows[REQUEST].kind for step in play.finished.steps]
    assert kinds == [RowKind.VERIFIED, RowKind.MISSED, RowKind.STALE, RowKind.VERIFIED]
    assert play.finished.request.tally.flushed == 2


def test_a_row_that_the_last_stage_skips_ran_on_the_first_one_only() -> None:
    play = PipelinePlay()
    play.token(4)
    play.draft(5)
    play.fail(BlockEnd.MISS)
    play.token(5)
    play.back(ran=False)
    play.back()
    play.end()
    assert play.finished.request.tally.flushed == 1
    spans = list(spans_of(play.finished, 2))
    assert [span.attributes[names.STEP_ROWS] for span in spans[:2]] == ["vmv", "vlv"]
    (block,) = (span for span in spans if span.name == names.SPAN_SPEC_BLOCK)
    seconds = block.attributes[names.SPEC_STAGE_SECONDS]
    assert seconds == [0.024, 0.01], "two steps with drafting on the first stage, one on the last"


def test_plain_steps_are_no_blocks() -> None:
    play = PipelinePlay()
    for position in range(4):
        play.token(position)
        play.back()
    play.end()
    assert play.finished.request.tally == Tally()
    assert [span.name for span in spans_of(play.finished, 2)] == [names.SPAN_STEPS] * 2


def test_a_preempted_request_goes_on_in_a_new_block() -> None:
    play = PipelinePlay()
    play.token(4)
    play.draft(5)
    play.hit()
    play.draft(6)
    play.recorder.rolled_back(REQUEST, BlockEnd.PREEMPTED)
    play.back()
    play.back()
    play.prompt(6)
    play.draft(6)
    play.hit()
    play.end()
    request = play.finished.request
    assert [block.end for block in request.blocks] == [BlockEnd.PREEMPTED, BlockEnd.REQUEST_END]
    # The right draft was in flight when the request was preempted: its token never came.
    assert request.blocks[0].tally() == Tally(blocks=1, drafted=1, accepted=1, emitted=1, flushed=2)


def test_a_name_that_is_used_again_starts_a_trace_of_its_own() -> None:
    play = PipelinePlay()
    play.token(4)
    play.draft(5)
    play.recorder.ended([REQUEST])
    play.recorder.begin(REQUEST, TRACEPARENT)
    play.back()
    play.back()
    play.token(2)
    play.end()
    assert [finished.request.is_complete for finished in play.emitted] == [False, True]
    assert len(play.emitted[1].steps) == 1


def test_spans_tell_of_steps_and_blocks(tmp_path: Path) -> None:
    spans, _ = written(play_everything(), tmp_path)
    lanes = [span for span in spans if span.name == names.SPAN_STEPS]
    assert [span.attributes[names.STAGE] for span in lanes] == [0, 1]
    assert {span.attributes[names.STEP_ROWS] for span in lanes} == {"paamvlvau"}
    assert lanes[0].attributes[names.STEP_POSITIONS] == [0, 5, 6, 7, 7, 8, 8, 9, 10]
    (total,) = (span for span in spans if span.name == names.SPAN_SPEC_SUMMARY)
    assert (total.attributes[names.SPEC_BLOCKS], total.attributes[names.SPEC_EMITTED]) == (3, 6)
    blocks = [span for span in spans if span.name == names.SPAN_SPEC_BLOCK]
    assert [span.attributes[names.SPEC_REASON] for span in blocks] == ["miss", "dropped", "request-end"]
    first = blocks[0]
    assert first.attributes[names.SPEC_FIRST_REJECTED] == 3
    assert first.attributes[names.SPEC_CONFIDENCE_MIN] == 0.3
    assert first.attributes[names.SPEC_BATCH_SIZE] == 2
    children = [span for span in spans if span.parent_span_id == first.span_id]
    assert [span.name for span in children] == [names.SPAN_SPEC_DRAFT, names.SPAN_SPEC_VERIFY]
    assert [span.attributes[names.STEPS] for span in children] == [4, 3], "the wrong draft is not verified"
    assert all(first.start_ns <= span.start_ns < span.end_ns <= first.end_ns for span in children)


def test_blocks_beyond_the_cap_are_in_the_sum_and_counted(tmp_path: Path) -> None:
    spans, registry = written(play_everything(max_blocks=1), tmp_path)
    assert sum(span.name == names.SPAN_SPEC_BLOCK for span in spans) == 1
    (total,) = (span for span in spans if span.name == names.SPAN_SPEC_SUMMARY)
    assert (total.attributes[names.SPEC_BLOCKS], total.attributes[names.SPEC_BLOCKS_LEFT_OUT]) == (3, 2)
    assert registry.get_sample_value("forerun_spans_dropped_total", {"reason": "block-cap"}) == 6


def test_an_untraced_request_leaves_nothing_and_steps_are_forgotten() -> None:
    assert not is_sampled(TRACEPARENT.removesuffix("01") + "00")
    assert not is_sampled("")
    recorder = PipelineRecorder(None, 8)
    recorder.begin(REQUEST, TRACEPARENT)
    assert not recorder.is_active

    play = PipelinePlay()
    for position in range(MAX_STEPS + 10):
        play.token(position)
        play.back()
    play.end()
    assert len(play.finished.steps) == MAX_STEPS
    assert play.finished.steps_before == 10
    assert not play.recorder.is_active


def test_rows_are_asked_for_traced_requests_only() -> None:
    asked: list[str] = []

    def row_of(request_id: str) -> Row:
        asked.append(request_id)
        return Row(RowKind.VERIFIED, 0, is_draft=False, samples=True)

    recorder = PipelineRecorder(lambda _: None, 8)
    recorder.begin(REQUEST, TRACEPARENT)
    recorder.planned(dict.fromkeys(["a", "b", REQUEST, "c"], 1), row_of)
    assert asked == [REQUEST]


def test_a_writer_that_falls_behind_drops_and_counts(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    tracing = setup_tracing("engine-core", TelemetryConfig(traces_dir=tmp_path), registry)
    held = threading.Lock()
    count_dropped = tracing.count_dropped

    def wait_and_count(reason: str, spans: int) -> None:
        if reason == "block-cap":
            with held:
                pass
        count_dropped(reason, spans)

    tracing.count_dropped = wait_and_count  # type: ignore[method-assign]
    writer = SpanWriter(tracing, 2)
    finished = play_everything().finished
    with held:
        for _ in range(MAX_WAITING + 20):
            writer.put(finished)
        dropped = registry.get_sample_value("forerun_spans_dropped_total", {"reason": "queue-full"})
    writer.close()
    assert dropped in (19, 20), "the thread may have taken one"
