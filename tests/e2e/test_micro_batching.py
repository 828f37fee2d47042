"""Micro-batches over pipeline stages: a property test of the real scheduler with a fake model.

The engine's own loop is imitated: up to ``stages`` steps in flight, outputs applied in order.
"""

import math
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

from services.scheduler.vllm_scheduler import ForerunScheduler
from tests.e2e.schedules import Configs, build_scheduler, events, stage_configs

BLOCK_SIZE = 16
BLOCKS = 65


class Pipeline:
    """The scheduler and ``stages`` steps in flight over a model that says token 7 to everything."""

    def __init__(self, config: Any, stages: int) -> None:
        self.scheduler = build_scheduler(ForerunScheduler, config, BLOCKS)
        self.stages = stages
        self.in_flight: deque[SchedulerOutput] = deque()
        self.decodes_per_step: list[tuple[int, int]] = []
        self.tokens: dict[str, int] = {}

    def add(self, name: str, prompt_tokens: int, max_tokens: int) -> None:
        sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
        self.scheduler.add_request(Request(name, list(range(prompt_tokens)), sampling, None))
        self.tokens[name] = 0

    def turn(self) -> None:
        """One turn of the engine's loop: fill the pipeline, then apply the oldest step."""
        while len(self.in_flight) < self.stages and self.scheduler.has_requests():
            decoding = [request for request in self.scheduler.running if not request.is_prefill_chunk]
            names = {request.request_id for request in decoding}
            output = self.scheduler.schedule()
            self.in_flight.append(output)
            scheduled = sum(name in names for name in output.num_scheduled_tokens)
            self.decodes_per_step.append((scheduled, len(decoding)))
            if not output.num_scheduled_tokens:
                break
        if self.in_flight:
            self._apply(self.in_flight.popleft())

    def _apply(self, output: SchedulerOutput) -> None:
        names = list(output.num_scheduled_tokens)
        sampled = [[7] if self._samples(name) else [] for name in names]
        result = ModelRunnerOutput(names, {name: index for index, name in enumerate(names)}, sampled)
        for outputs in self.scheduler.update_from_output(output, result).values():
            for each in outputs.outputs:
                self.tokens[each.request_id] += len(each.new_token_ids)

    def _samples(self, name: str) -> bool:
        request = self.scheduler.requests.get(name)
        return request is not None and request.num_computed_tokens >= request.num_tokens


@pytest.fixture(scope="module")
def configs(model_path: Path) -> Configs:
    return make_configs(model_path, (1, 2, 3, 4))


def make_configs(model: Path, stages: Iterable[int], **forerun: Any) -> Configs:
    return stage_configs(
        model,
        stages,
        forerun,
        max_model_len=512,
        max_num_batched_tokens=64,
        block_size=BLOCK_SIZE,
        enable_prefix_caching=False,
    )


@pytest.mark.timeout(300)
@settings(
    deadline=None,
    max_examples=150,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(stages=st.integers(1, 4), events=events(longest_prompt=150, most_tokens=40))
def test_every_request_ends_no_block_leaks_and_no_step_takes_more_than_its_share(
    configs: Configs, stages: int, events: list[tuple[str, int, int]]
) -> None:
    pipeline = Pipeline(configs[stages], stages)
    wanted: dict[str, int] = {}
    for kind, first, second in events:
        if kind == "add":
            name = f"r{len(wanted)}"
            wanted[name] = second
            pipeline.add(name, first, second)
        elif kind == "abort" and wanted:
            name = f"r{first % len(wanted)}"
            pipeline.scheduler.finish_requests([name], RequestStatus.FINISHED_ABORTED)
            wanted[name] = -1
        else:
            for _ in range(first):
                pipeline.turn()
    for _ in range(20_000):
        if not (pipeline.scheduler.has_requests() or pipeline.in_flight):
            break
        pipeline.turn()
    assert not pipeline.scheduler.has_requests(), "a request never ended"
    for name, count in wanted.items():
        assert count in (-1, pipeline.tokens[name]), name
    assert pipeline.scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == BLOCKS - 1
    for scheduled, decoding in pipeline.decodes_per_step:
        assert scheduled <= math.ceil(decoding / stages)


def test_a_crowd_is_split_over_the_stages_and_stays_split(configs: Configs) -> None:
    pipeline = Pipeline(configs[2], 2)
    for index in range(8):
        pipeline.add(f"r{index}", 4, 50)
    for _ in range(60):
        pipeline.turn()
    busy = [scheduled for scheduled, decoding in pipeline.decodes_per_step[6:60] if decoding == 8]
    assert busy
    assert set(busy) == {4}, "both micro-batches carry half of the crowd in every step"


def test_without_micro_batching_a_crowd_that_came_apart_forms_one_batch(model_path: Path) -> None:
    pipeline = Pipeline(make_configs(model_path, [2], micro_batching=False)[2], 2)
    for index in range(8):
        pipeline.add(f"r{index}", 4, 30)
        pipeline.turn()
    for _ in range(60):
        pipeline.turn()
    steps = [scheduled for scheduled, decoding in pipeline.decodes_per_step if decoding == 8]
    assert set(steps[4:]) == {0, 8}, "a step takes all, and the next waits for it"
    assert all(count == 30 for count in pipeline.tokens.values())
