"""The stage × time picture, from the spans that a replica writes: run-ahead, misses and bubbles are there to see."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.console import Console

from services.cli.pipeline_picture import NoPictureError, Picture, picture_of
from services.cli.pipeline_svg import write_svg
from services.cli.pipeline_text import render_picture
from services.common.config import TelemetryConfig
from services.common.row_kind import RowKind
from services.common.trace_store import read_trace
from services.common.tracing import setup_tracing
from services.scheduler.span_writer import SpanWriter
from tests.support.pipeline_play import TRACE_ID, PipelinePlay, play_everything

SVG = "{http://www.w3.org/2000/svg}"


def drawn(play: PipelinePlay, folder: Path) -> Picture:
    writer = SpanWriter(setup_tracing("engine-core", TelemetryConfig(traces_dir=folder)), play.stages)
    writer.put(play.finished)
    writer.close()
    return picture_of(read_trace(folder, TRACE_ID))


@pytest.fixture
def picture(tmp_path: Path) -> Picture:
    return drawn(play_everything(), tmp_path)


def text_of(picture: Picture, width: int) -> str:
    console = Console(width=width, force_terminal=False)
    with console.capture() as capture:
        console.print(render_picture(picture, width), soft_wrap=True)
    return capture.get()


def test_the_first_stage_runs_ahead_of_the_verdict(picture: Picture) -> None:
    first, last = picture.lanes
    assert "".join(box.kind for box in first.boxes) == "paamvlvau"
    assert first.boxes[1].began_ms < last.boxes[0].ended_ms, "the draft enters before the token before it is verified"
    assert first.boxes[4].began_ms >= last.boxes[2].ended_ms, "the verified token after a miss cannot"
    assert [miss.position for miss in picture.misses] == [7]
    assert picture.misses[0].at_ms == pytest.approx(last.boxes[2].ended_ms)


def test_shares_add_up_and_bubbles_are_what_is_left(picture: Picture) -> None:
    for lane in picture.lanes:
        model, draft, bubble = lane.shares()
        assert model + draft + bubble == pytest.approx(1)
        gaps = sum(after.began_ms - box.ended_ms for box, after in zip(lane.boxes, lane.boxes[1:], strict=False))
        assert bubble * (lane.boxes[-1].ended_ms - lane.boxes[0].began_ms) == pytest.approx(gaps, abs=0.02)
    assert picture.lanes[0].shares()[1] > 0 == picture.lanes[1].shares()[1]


def test_a_terminal_shows_one_letter_a_step_and_dots_for_bubbles(picture: Picture) -> None:
    text = text_of(picture, 200)
    lines = [line for line in text.splitlines() if re.match("stage . {2}", line)]
    assert [re.sub("[^A-Z]", "", line) for line in lines] == ["PAAMVLVAU"] * 2
    assert "·" not in lines[0], "drafting makes the first stage the slower one"
    assert "━·A" in lines[1], "for which the last one waits"
    assert "M draft, wrong" in text
    assert "4 drafted, 3 accepted (75%)" in text
    narrow = text_of(picture, 40)
    assert narrow.count("stage 1  ") > 1
    assert all(len(line) <= 40 for line in narrow.splitlines() if line.startswith("stage 1  "))


def test_a_long_answer_is_cut_and_says_where(tmp_path: Path) -> None:
    play = PipelinePlay()
    for position in range(300):
        play.token(position)
        play.back()
    play.end()
    assert "--steps" in text_of(drawn(play, tmp_path), 60)


def test_svg_has_a_box_a_step_and_a_line_a_miss(picture: Picture) -> None:
    root = ElementTree.fromstring(write_svg(picture))
    tips = [title.text or "" for title in root.iter(f"{SVG}title")]
    assert sum("on stage 0" in tip for tip in tips) == sum("on stage 1" in tip for tip in tips) == 9
    assert "the draft at position 7 was wrong" in tips
    width, height = (float(root.attrib[name]) for name in ("width", "height"))
    for rect in root.iter(f"{SVG}rect"):
        assert 0 <= float(rect.get("x", 0)) <= width
        assert 0 <= float(rect.get("y", 0)) + float(rect.attrib["height"]) <= height


def test_steps_can_be_chosen(picture: Picture) -> None:
    part = picture.of_steps(4, 5)
    assert ["".join(box.kind for box in lane.boxes) for lane in part.lanes] == ["mv", "mv"]
    assert part.lanes[0].boxes[0].began_ms == 0
    assert [box.kind for box in picture.of_steps(8, None).lanes[0].boxes] == [RowKind.ACCEPTED, RowKind.UNJUDGED]
    with pytest.raises(NoPictureError, match="9 steps"):
        picture.of_steps(20, 30)


def test_a_trace_without_steps_has_no_picture() -> None:
    with pytest.raises(NoPictureError, match="no steps"):
        picture_of([])
