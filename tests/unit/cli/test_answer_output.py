"""What a user or a program gets to read of an answer."""

import io
import json

from hypothesis import given
from hypothesis import strategies as st

from services.cli.answer_output import JsonWriter, TextWriter, for_terminal
from services.cli.answer_stream import AnswerSummary
from services.client import Started
from services.common.errors import RequestEndedError, invalid
from services.common.outcome import Outcome
from services.common.types import ChoiceEnd, Delta, Finished, SpeculationUsage, TokenLogprob, Usage

STARTED = Started("r", "replica-0", "abc", 3)
FINISHED = Finished(Outcome.STOP, (ChoiceEnd(0, Outcome.STOP),), Usage(3, 2))


def test_one_choice_streams() -> None:
    output = io.StringIO()
    writer = TextWriter(1, output)
    writer.event(STARTED)
    assert output.getvalue() == ""
    writer.event(Delta(0, "Hel", (1,)))
    assert output.getvalue() == "Hel"
    writer.event(Delta(0, "lo", (2,)))
    writer.event(FINISHED)
    assert output.getvalue() == "Hello\n"


def test_several_choices_do_not_mix() -> None:
    output = io.StringIO()
    writer = TextWriter(2, output)
    for index, text in ((0, "a"), (1, "x"), (0, "b"), (1, "y")):
        writer.event(Delta(index, text, (1,)))
    writer.event(FINISHED)
    assert output.getvalue() == "--- 0\nab\n--- 1\nxy\n"


def test_a_failure_ends_the_line_only_if_there_is_one() -> None:
    for begun, expected in ((False, ""), (True, "a\n")):
        output = io.StringIO()
        writer = TextWriter(1, output)
        if begun:
            writer.event(Delta(0, "a", (1,)))
        writer.failed(RequestEndedError(Outcome.DEADLINE, "late"))
        assert output.getvalue() == expected


def test_json_lines() -> None:
    output = io.StringIO()
    writer = JsonWriter(output)
    logprob = TokenLogprob(7, -0.5, 1, b"\xe2\x82")
    writer.event(STARTED)
    writer.event(Delta(0, "é", (7,), ((logprob,),)))
    writer.event(FINISHED)
    writer.failed(invalid("prompt", "is empty"))
    started, delta, finished, ended = (json.loads(line) for line in output.getvalue().splitlines())
    assert started == {
        "event": "started", "request_id": "r", "replica_id": "replica-0", "trace_id": "abc", "prompt_tokens": 3,
        "expert_choice": None,
    }  # fmt: skip
    assert (delta["event"], delta["text"], delta["logprobs"][0][0]["token"]) == ("delta", "é", "\\xe2\\x82")
    assert (finished["outcome"], finished["usage"]["output_tokens"]) == ("stop", 2)
    assert (ended["outcome"], ended["field"], ended["message"]) == ("rejected-invalid", "prompt", "prompt: is empty")


@given(st.text())
def test_nothing_that_drives_a_terminal_reaches_it(text: str) -> None:
    shown = for_terminal(text)
    assert all(character in "\n\t" or character.isprintable() for character in shown)
    assert for_terminal(shown) == shown


def test_text_is_kept() -> None:
    assert for_terminal("héllo 🙂\n\tx\x1b[2J") == "héllo 🙂\n\tx[2J"


def test_the_summary_tells_of_drafts_where_there_were_some() -> None:
    usage = Usage(output_tokens=9, speculation=SpeculationUsage(10, (1, 0, 3)))
    summary = AnswerSummary("stop", usage=usage, first_text_s=0.5, total_s=2.0)
    assert str(summary) == "stop: 9 tokens in 2.00 s, first after 0.50 s, 6 of 10 drafts accepted"
    plain = AnswerSummary("stop", usage=Usage(output_tokens=9, speculation=SpeculationUsage()), total_s=2.0)
    assert str(plain) == "stop: 9 tokens in 2.00 s"
