"""What a stage tells of its time, and what it does with a grammar that comes late."""

import time
from types import SimpleNamespace
from typing import Any

import pytest
from forerun.stage.v1 import service_pb2 as pb
from opentelemetry.trace import NoOpTracer
from prometheus_client import CollectorRegistry
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT, ModelRunnerOutput

from services.common import vllm_codec
from services.workers.activations import ActivationInbox
from services.workers.kept_drafts import KeptDrafts
from services.workers.length_states import LengthStates
from services.workers.metrics import StageMetrics
from services.workers.spans import StageSpans
from services.workers.step_runner import StepRunner
from services.workers.verdicts import Verdicts

WAIT_S = 0.02


def make_runner(stage: Any, registry: CollectorRegistry) -> StepRunner:
    metrics, spans = StageMetrics(registry), StageSpans(NoOpTracer(), 0, 0)
    return StepRunner(stage, 1, ActivationInbox(), lambda message, *, at_once: None, metrics, spans, 1.0)


def make_stage(**changes: Any) -> Any:
    """One that has nothing to run."""
    parts = {
        "place": SimpleNamespace(is_first=True, is_last=True, reports_output=True),
        "speculation": None,
        "forward": lambda plan, hidden: EMPTY_MODEL_RUNNER_OUTPUT,
    }
    return SimpleNamespace(**parts | changes)


def test_a_wait_is_a_bubble_unless_there_was_nothing_to_do() -> None:
    registry = CollectorRegistry()
    runner = make_runner(make_stage(), registry)
    plan = vllm_codec.encode_scheduler_output(SchedulerOutput.make_empty())
    times = []
    for step, after_idle in enumerate((True, False), start=1):
        time.sleep(WAIT_S)
        reply = runner.run(pb.ExecuteRequest(step=step, generation=1, scheduler_output=plan, after_idle=after_idle))
        assert reply is not None
        times.append(reply.times)
    assert all(each.idle_ns >= WAIT_S * 1e9 for each in times)
    assert [each.bubble_ns for each in times] == [0, times[1].idle_ns]
    bubbles = registry.get_sample_value("forerun_stage_bubble_seconds_total")
    assert bubbles == pytest.approx(times[1].bubble_ns / 1e9)


def test_a_step_without_rows_is_answered_when_its_grammar_comes() -> None:
    """All of its rows were left out: an answer before the grammar would find nobody who waits for it."""
    sampled: list[object] = []
    runner = make_runner(make_stage(sample=sampled.append), CollectorRegistry())
    plan = vllm_codec.encode_scheduler_output(SchedulerOutput.make_empty())
    later, now = pb.ExecuteRequest.SAMPLING_LATER, pb.ExecuteRequest.SAMPLING_NOW
    assert runner.run(pb.ExecuteRequest(step=1, generation=1, scheduler_output=plan, sampling=later)) is None
    reply = runner.run(pb.ExecuteRequest(step=1, generation=1, sampling=now))
    assert reply is not None
    assert not reply.HasField("error")
    assert vllm_codec.decode_model_runner_output(reply.model_runner_output).req_ids == []
    assert sampled == []


def test_speculation_hears_of_finished_requests_from_plans_without_rows() -> None:
    """Such a plan follows when the last request has ended; what is kept of it would stay for ever."""
    kept, verdicts = KeptDrafts(), Verdicts()
    kept.keep([pb.Draft(request_id="r", token_id=5)], drop_fraction=0.0)
    verdicts.sampled(ModelRunnerOutput(["r"], {"r": 0}, [[5]]))

    def before_forward(plan: SchedulerOutput, speculation: pb.Speculation, received: pb.SpeculatedRows | None) -> None:
        kept.enter(plan, set(speculation.drafted_request_ids))
        verdicts.stale(plan, {})

    runner = make_runner(make_stage(speculation=SimpleNamespace(before_forward=before_forward)), CollectorRegistry())
    plan = SchedulerOutput.make_empty()
    plan.finished_req_ids = {"r"}
    reply = runner.run(
        pb.ExecuteRequest(step=1, generation=1, scheduler_output=vllm_codec.encode_scheduler_output(plan))
    )
    assert reply is not None
    assert not reply.HasField("error")
    assert (kept.held, verdicts.held) == (0, 0)


def test_states_are_handed_over_where_they_are_asked_for_and_a_fault_there_fails_no_step() -> None:
    faults = [False, False, True]
    handed_over: list[LengthStates] = []

    def length_states(plan: SchedulerOutput, queries: list[pb.LengthQuery]) -> LengthStates:
        if faults.pop(0):
            raise RuntimeError("no such layer")
        return LengthStates(tuple(query.request_id for query in queries), (7,), b"")

    runner = make_runner(make_stage(length_states=length_states), CollectorRegistry())
    runner.predict = handed_over.append
    plan = vllm_codec.encode_scheduler_output(SchedulerOutput.make_empty())
    query = pb.LengthQuery(request_id="r", answer_tokens=7)
    for step, queries in enumerate(([query], [], [query], [query], [query]), start=1):
        reply = runner.run(pb.ExecuteRequest(step=step, generation=1, scheduler_output=plan, length_queries=queries))
        assert reply is not None
        assert not reply.HasField("error")
    assert handed_over == [LengthStates(("r",), (7,), b"")] * 2
    assert faults == [], "the last step asked nobody any more"
