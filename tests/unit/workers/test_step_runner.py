"""What a stage tells of its time."""

import time
from types import SimpleNamespace
from typing import Any

import pytest
from forerun.stage.v1 import service_pb2 as pb
from opentelemetry.trace import NoOpTracer
from prometheus_client import CollectorRegistry
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT

from services.common import vllm_codec
from services.workers.activations import ActivationInbox
from services.workers.metrics import StageMetrics
from services.workers.spans import StageSpans
from services.workers.step_runner import StepRunner

WAIT_S = 0.02


def test_a_wait_is_a_bubble_unless_there_was_nothing_to_do() -> None:
    stage: Any = SimpleNamespace(
        place=SimpleNamespace(is_first=True, is_last=True, reports_output=True),
        speculation=None,
        forward=lambda plan, hidden: EMPTY_MODEL_RUNNER_OUTPUT,
    )
    registry = CollectorRegistry()
    runner = StepRunner(
        stage, 1, ActivationInbox(), lambda _: None, StageMetrics(registry), StageSpans(NoOpTracer(), 0, 0), 1.0
    )
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
