"""What is sent arrives: round trips through serialized bytes, for every type."""

import math

import pytest
from forerun.inference.v1 import generation_pb2, sampling_pb2, service_pb2
from forerun.scheduler.v1 import service_pb2 as scheduler_pb2
from hypothesis import given
from hypothesis import strategies as st

from services.common import convert
from services.common.errors import RequestEndedError
from services.common.outcome import Outcome
from services.common.types import (
    Delta,
    ExpertChoice,
    Finished,
    GenerationEvent,
    ReplicaInfo,
    ReplicaState,
    SamplingOptions,
    StructuredOutput,
    Submission,
    TokenLogprob,
)
from tests.support import domain_strategies as domain


def over_the_wire(message):
    return type(message).FromString(message.SerializeToString())


@given(domain.sampling_options)
def test_sampling_options_arrive(options: SamplingOptions) -> None:
    assert convert.sampling_from_proto(over_the_wire(convert.sampling_to_proto(options))) == options


@given(domain.events, domain.text)
def test_events_arrive(event: GenerationEvent, request_id: str) -> None:
    message = over_the_wire(convert.event_to_proto(request_id, event))
    assert message.request_id == request_id
    assert convert.event_from_proto(message) == event
    assert convert.response_from_proto(over_the_wire(convert.response_to_proto(event))) == event


@pytest.mark.parametrize("milliseconds", [1, 129_907, 2**32 - 1])
def test_a_deadline_of_whole_milliseconds_stays_what_it_is(milliseconds: int) -> None:
    assert (
        convert.submission_to_proto(Submission("r", (), SamplingOptions(), timeout_s=milliseconds / 1e3)).timeout_ms
        == milliseconds
    )


@given(domain.submissions)
def test_submissions_arrive(submission: Submission) -> None:
    assert convert.submission_from_proto(over_the_wire(convert.submission_to_proto(submission))) == submission


@given(domain.expert_choices)
def test_expert_choices_arrive(choice: ExpertChoice) -> None:
    assert convert.expert_choice_from_proto(over_the_wire(convert.expert_choice_to_proto(choice))) == choice


def test_an_expert_of_a_newer_router_is_the_replicas_own_choice() -> None:
    submit = scheduler_pb2.Submit(expert=scheduler_pb2.RoutedExpert(expert="medusa", first_draft_tokens=3))
    assert convert.submission_from_proto(submit).expert is None


@given(domain.replica_infos)
def test_replica_infos_arrive(info: ReplicaInfo) -> None:
    assert convert.replica_info_from_proto(over_the_wire(convert.replica_info_to_proto(info))) == info


def test_absent_fields_take_the_engines_defaults() -> None:
    assert convert.sampling_from_proto(sampling_pb2.SamplingParams()) == SamplingOptions()
    assert convert.sampling_to_proto(SamplingOptions()).ByteSize() == 0


def test_the_engines_other_spelling_of_all_tokens_travels_as_zero() -> None:
    assert convert.sampling_from_proto(convert.sampling_to_proto(SamplingOptions(top_k=-1))).top_k == 0


def test_explicit_zeros_are_not_absent() -> None:
    options = SamplingOptions(temperature=0.0, top_k=0, seed=0, logprobs=0, detokenize=False, max_tokens=0)
    assert convert.sampling_from_proto(over_the_wire(convert.sampling_to_proto(options))) == options


@given(st.text(st.characters(categories=["Cs", "L", "So"]), max_size=8))
def test_text_is_made_valid_utf8(text: str) -> None:
    sent = over_the_wire(convert.delta_to_proto(Delta(0, text, (1,))))
    sent.text.encode("utf-8")
    if not any("\ud800" <= character <= "\udfff" for character in text):
        assert sent.text == text


def test_lone_surrogates_are_replaced_and_pairs_joined() -> None:
    assert convert.valid_text("a\ud83db") == "a\ufffdb"
    assert convert.valid_text("\ud83d\ude00") == "\U0001f600"


@pytest.mark.parametrize("value", [-math.inf, math.inf, -0.0, -3.5])
def test_log_probabilities_survive(value: float) -> None:
    delta = Delta(0, "", (7,), ((TokenLogprob(7, value, None, b"\xe2\x82"),),))
    received = convert.delta_from_proto(over_the_wire(convert.delta_to_proto(delta)))
    assert received == delta
    assert math.copysign(1, received.logprobs[0][0].logprob) == math.copysign(1, value)


def test_not_a_number_survives_as_itself() -> None:
    options = convert.sampling_from_proto(
        over_the_wire(convert.sampling_to_proto(SamplingOptions(temperature=math.nan)))
    )
    assert math.isnan(options.temperature)


@pytest.mark.parametrize(
    "output",
    [
        sampling_pb2.StructuredOutput(),
        sampling_pb2.StructuredOutput(disable_any_whitespace=True),
        sampling_pb2.StructuredOutput(json_object=False),
    ],
)
def test_structured_output_without_a_constraint_is_refused(output: sampling_pb2.StructuredOutput) -> None:
    with pytest.raises(RequestEndedError) as caught:
        convert.sampling_from_proto(sampling_pb2.SamplingParams(structured_output=output))
    assert caught.value.outcome is Outcome.REJECTED_INVALID
    assert caught.value.field == "sampling.structured_output"


def test_an_empty_constraint_is_still_that_constraint() -> None:
    for output in (StructuredOutput("regex"), StructuredOutput("choice"), StructuredOutput("json_schema")):
        options = SamplingOptions(structured_output=output)
        assert convert.sampling_from_proto(over_the_wire(convert.sampling_to_proto(options))) == options


@pytest.mark.parametrize(
    ("seconds", "milliseconds"), [(0.0001, 1), (1.5, 1500), (-3.0, 0), (0.0, 0), (1e12, 2**32 - 1)]
)
def test_time_left_is_rounded_up_and_bounded(seconds: float, milliseconds: int) -> None:
    submission = Submission("r", (1,), SamplingOptions(), timeout_s=seconds)
    assert convert.submission_to_proto(submission).timeout_ms == milliseconds


def test_what_only_a_newer_peer_knows_has_a_safe_meaning() -> None:
    assert convert.event_from_proto(scheduler_pb2.RequestEvent(request_id="r")) is None
    assert convert.response_from_proto(service_pb2.GenerateResponse()) is None
    assert convert.response_from_proto(service_pb2.GenerateResponse(started=service_pb2.Started())) is None
    assert convert.replica_state_from_proto(99) is ReplicaState.LOST
    assert convert.replica_state_from_proto(0) is ReplicaState.LOST
    assert convert.finished_from_proto(generation_pb2.Finished()) == Finished(Outcome.INTERNAL)


def test_numbers_that_the_wire_cannot_hold_are_refused() -> None:
    for options in (SamplingOptions(n=2**40), SamplingOptions(max_tokens=-1), SamplingOptions(stop_token_ids=(-1,))):
        with pytest.raises(ValueError, match=r"range|out of"):
            convert.sampling_to_proto(options)
