"""The pieces between vLLM's HTTP app and the domain call, with vLLM's own classes: outputs, errors, arguments."""

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("vllm")

from vllm.entrypoints.serve.exception_handling.error_response import create_error_response
from vllm.exceptions import GenerationError
from vllm.outputs import RequestOutput
from vllm.sampling_params import RequestOutputKind, SamplingParams

from services.common.errors import ConfigError, RequestEndedError, invalid, overloaded
from services.common.outcome import Outcome
from services.common.types import ChoiceEnd, Delta, Finished, PromptLogprobs, TokenLogprob, Usage
from services.router.request import RouterEvent, Started
from services.router.vllm_args import parse_http_args
from services.router.vllm_errors import http_error
from services.router.vllm_outputs import OutputBuilder, to_stats
from tests.support.router_fakes import replica_info
from tests.support.tiny_model import write_tiny_model

STARTED = Started("x", "r0", "ab", 2)


def build(kind: RequestOutputKind, n: int = 1, **params: Any) -> OutputBuilder:
    return OutputBuilder("x", [1, 2], "prompt", SamplingParams(n=n, output_kind=kind, **params))


def take(builder: OutputBuilder, *batches: list[RouterEvent]) -> list[RequestOutput]:
    return [output for batch in batches if (output := builder.take(batch)) is not None]


def delta(text: str, token: int, index: int = 0) -> Delta:
    return Delta(
        index, text, (token,), ((TokenLogprob(token, -0.5, 1, text.encode()), TokenLogprob(99, -2.0, 2, b"\xff")),)
    )


def finished(*stops: str | int | None) -> Finished:
    ends = tuple(ChoiceEnd(index, Outcome.STOP, stop) for index, stop in enumerate(stops))
    return Finished(Outcome.STOP, ends, Usage(prompt_tokens=2, output_tokens=3, cached_tokens=1))


BATCHES: list[list[RouterEvent]] = [
    [STARTED, delta("a", 1), delta("b", 2)],
    [delta("c", 3)],
    [delta("d", 4), finished("stop")],
]


def test_deltas_are_new_output_and_the_end_rides_on_the_last() -> None:
    outputs = take(build(RequestOutputKind.DELTA, logprobs=1), *BATCHES)
    assert [output.outputs[0].text for output in outputs] == ["ab", "c", "d"]
    assert [list(output.outputs[0].token_ids) for output in outputs] == [[1, 2], [3], [4]]
    assert [len(output.outputs[0].logprobs) for output in outputs] == [2, 1, 1]
    assert [output.finished for output in outputs] == [False, False, True]
    assert [output.outputs[0].finish_reason for output in outputs] == [None, None, "stop"]
    assert outputs[-1].outputs[0].stop_reason == "stop"
    assert math.isclose(outputs[-1].outputs[0].cumulative_logprob, -2.0)
    assert outputs[-1].num_cached_tokens == 1
    assert all(output.prompt_token_ids == [1, 2] and output.prompt == "prompt" for output in outputs)


def test_cumulative_is_everything_so_far() -> None:
    outputs = take(build(RequestOutputKind.CUMULATIVE), *BATCHES)
    assert [output.outputs[0].text for output in outputs] == ["ab", "abc", "abcd"]
    # What was handed out does not change afterwards.
    assert [list(output.outputs[0].token_ids) for output in outputs] == [[1, 2], [1, 2, 3], [1, 2, 3, 4]]


def test_final_only_is_one_output() -> None:
    (output,) = take(build(RequestOutputKind.FINAL_ONLY), *BATCHES)
    assert (output.outputs[0].text, list(output.outputs[0].token_ids)) == ("abcd", [1, 2, 3, 4])
    assert output.outputs[0].logprobs is None


def test_choices_end_together_without_repeating_their_output() -> None:
    builder = build(RequestOutputKind.DELTA, n=2, logprobs=0)
    first, second, last = take(builder, [delta("a", 1, 0)], [delta("b", 2, 1)], [finished(None, 7)])
    assert [output.index for output in first.outputs] == [0]
    assert [output.index for output in second.outputs] == [1]
    assert [(output.index, output.text, list(output.token_ids)) for output in last.outputs] == [
        (0, "", []),
        (1, "", []),
    ]
    assert [(output.finish_reason, output.stop_reason) for output in last.outputs] == [("stop", None), ("stop", 7)]
    assert last.outputs[0].logprobs == []


def test_prompt_logprobs_come_with_the_first_output() -> None:
    positions = PromptLogprobs(((), (TokenLogprob(2, -1.0, 3, b"x"),)))
    first, second = take(build(RequestOutputKind.DELTA), [positions, delta("a", 1)], [delta("b", 2)])
    assert first.prompt_logprobs is not None
    assert first.prompt_logprobs[0] is None
    assert first.prompt_logprobs[1][2].rank == 3
    assert second.prompt_logprobs is None


def test_half_characters_become_replacement_characters() -> None:
    (output,) = take(build(RequestOutputKind.DELTA, logprobs=1), [delta("a", 1)])
    assert output.outputs[0].logprobs[0][99].decoded_token == "\ufffd"


@given(st.lists(st.lists(st.tuples(st.integers(0, 2), st.text(max_size=2)), min_size=1, max_size=4), max_size=8))
def test_every_kind_tells_the_same_story(batches: list[list[tuple[int, str]]]) -> None:
    events: list[list[RouterEvent]] = [[Delta(index, text, (7,)) for index, text in batch] for batch in batches]
    events.append([finished(None, None, None)])
    expected = {index: "".join(text for batch in batches for at, text in batch if at == index) for index in range(3)}
    deltas = take(build(RequestOutputKind.DELTA, n=3), *events)
    joined = {
        index: "".join(one.text for out in deltas for one in out.outputs if one.index == index) for index in expected
    }
    assert joined == expected
    for kind in (RequestOutputKind.CUMULATIVE, RequestOutputKind.FINAL_ONLY):
        last = take(build(kind, n=3), *events)[-1]
        assert {output.index: output.text for output in last.outputs} == expected


def test_times_are_differences() -> None:
    stats = to_stats(Usage(queue_seconds=0.1, first_token_seconds=0.3, total_seconds=0.9, output_tokens=4))
    assert math.isclose(stats.first_token_ts - stats.scheduled_ts, 0.2)
    assert math.isclose(stats.last_token_ts - stats.first_token_ts, 0.6)


@pytest.mark.parametrize(
    ("error", "code", "param"),
    [
        (invalid("sampling.top_p", "must be at most 1"), 400, "top_p"),
        (invalid("prompt", "is empty"), 400, "prompt"),
        (RequestEndedError(Outcome.REJECTED_INVALID, "model: unknown", field="model", not_found=True), 404, None),
        (overloaded("full", 100), 429, None),
        (RequestEndedError(Outcome.REJECTED_UNAVAILABLE, "none"), 503, None),
        (RequestEndedError(Outcome.DEADLINE, "late"), 504, None),
        (RequestEndedError(Outcome.REPLICA_LOST, "gone"), 502, None),
        (RequestEndedError(Outcome.INTERNAL, "bug"), 500, None),
        (RequestEndedError(Outcome.CANCELLED, "stopped"), 503, None),
    ],
)
def test_endings_as_http_errors(error: RequestEndedError, code: int, param: str | None) -> None:
    exception = http_error(error)
    # vLLM's streams report these without a stack trace in the log.
    assert isinstance(exception, GenerationError)
    body = create_error_response(exception).error
    assert (body.code, body.param, body.message) == (code, param, error.message)
    assert exception.status_code == code


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tiny_model(tmp_path_factory.mktemp("model")))


def test_arguments_are_vllms_own(model: str, tmp_path: Path) -> None:
    template = tmp_path / "chat.jinja"
    template.write_text("{{ messages }}")
    args = parse_http_args(
        {
            "enable-auto-tool-choice": True,
            "tool_call_parser": "hermes",
            "chat_template": str(template),
            "allowed_origins": ["https://a.test", "https://b.test"],
            "default_chat_template_kwargs": {"enable_thinking": False},
            "enable_log_deltas": False,
            "max_log_len": 5,
            "reasoning_parser": None,
        },
        model,
        replica_info("r0", model_names=("tiny", "also"), max_model_len=512),
    )
    assert (args.enable_auto_tool_choice, args.tool_call_parser) == (True, "hermes")
    assert args.allowed_origins == ["https://a.test", "https://b.test"]
    assert args.default_chat_template_kwargs == {"enable_thinking": False}
    assert (args.enable_log_deltas, args.max_log_len) == (False, 5)
    assert (args.model, args.served_model_name, args.max_model_len) == (model, ["tiny", "also"], 512)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"port": 80}, "http_args.port: is decided by http_listen"),
        ({"api-key": "x"}, "api_keys"),
        ({"no_such_flag": 1}, "http_args.no_such_flag: vLLM has no such flag"),
        ({"max_log_len": "many"}, "max-log-len"),
        ({"enable_auto_tool_choice": True}, "tool-call-parser"),
        ({"tool_call_parser": "unheard-of", "enable_auto_tool_choice": True}, "unheard-of"),
        ({"reasoning_parser": "unheard-of"}, "unheard-of"),
    ],
)
def test_wrong_arguments_are_named(model: str, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_http_args(arguments, model, replica_info("r0"))
