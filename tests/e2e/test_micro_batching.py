"""Micro-batches over pipeline stages: a property test of the real scheduler with a fake model."""

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.e2e.plain_pipeline import PlainPipeline, carry_out
from tests.e2e.schedules import Configs, events, stage_configs

BLOCK_SIZE = 16
BLOCKS = 65


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
    pipeline = PlainPipeline(configs[stages], stages, BLOCKS)
    wanted = carry_out(events, pipeline.scheduler, pipeline.add, pipeline.turn)
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
    pipeline = PlainPipeline(configs[2], 2, BLOCKS)
    for index in range(8):
        pipeline.add(f"r{index}", 4, 50)
    for _ in range(60):
        pipeline.turn()
    busy = [scheduled for scheduled, decoding in pipeline.decodes_per_step[6:60] if decoding == 8]
    assert busy
    assert set(busy) == {4}, "both micro-batches carry half of the crowd in every step"


def test_without_micro_batching_a_crowd_that_came_apart_forms_one_batch(model_path: Path) -> None:
    pipeline = PlainPipeline(make_configs(model_path, [2], micro_batching=False)[2], 2, BLOCKS)
    for index in range(8):
        pipeline.add(f"r{index}", 4, 30)
        pipeline.turn()
    for _ in range(60):
        pipeline.turn()
    steps = [scheduled for scheduled, decoding in pipeline.decodes_per_step if decoding == 8]
    assert set(steps[4:]) == {0, 8}, "a step takes all, and the next waits for it"
    assert all(count == 30 for count in pipeline.tokens.values())
