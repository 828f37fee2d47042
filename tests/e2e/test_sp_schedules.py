"""Random schedules through the real SP scheduler against a model that needs no schedule."""

from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.request import RequestStatus

from services.scheduler.pipeline_recorder import FinishedTrace, PipelineRecorder
from services.scheduler.sp_block import Tally
from services.scheduler.sp_controller import Reason, SpController
from services.scheduler.vllm_sp_scheduler import SpScheduler
from tests.e2e.schedules import Configs, build_scheduler, events, run_to_the_end, stage_configs
from tests.e2e.sp_pipeline import STOP_TOKEN, SpPipeline, reference

BLOCK_SIZE = 4
BLOCKS = 41
"""So few that a handful of requests preempt one another."""

MAX_MODEL_LEN = 120


@pytest.fixture(scope="module")
def configs(model_path: Path) -> Configs:
    return stage_configs(
        model_path,
        (2, 3, 4),
        {"speculation": {"draft_adapter": "none", "mode": "always"}},
        max_model_len=MAX_MODEL_LEN,
        max_num_batched_tokens=32,
        block_size=BLOCK_SIZE,
        enable_prefix_caching=True,
    )


def pipeline(config: Any, stages: int, seed: int, hit: float, drop: float) -> SpPipeline:
    scheduler = build_scheduler(SpScheduler, config, BLOCKS)
    init_none_hash(sha256)
    hasher = get_request_block_hasher(BLOCK_SIZE, sha256)
    return SpPipeline(scheduler, stages, BLOCK_SIZE, Random(seed), hit, drop, hasher)


class Traced(list[FinishedTrace]):
    """Every request's trace, when it was over."""

    def tally(self) -> Tally:
        """Of their blocks, which all have been kept."""
        total = Tally()
        for finished in self:
            assert len(finished.request.blocks) == finished.request.tally.blocks
            total.add(finished.request.tally)
        return total


def trace_everything(scheduler: Any) -> Traced:
    """Instead of the recorder that the configuration asks for, which keeps nothing."""
    traced = Traced()
    scheduler._recorder = scheduler._sp_metrics._recorder = PipelineRecorder(traced.append, max_blocks=10_000)
    return traced


def counted(scheduler: Any) -> Tally:
    """What the metrics say."""
    samples = [sample for metric in scheduler._registry.collect() for sample in metric.samples]
    values = {field: f"forerun_sp_{field}_tokens_total" for field in Tally.__dataclass_fields__}
    values["blocks"] = "forerun_sp_blocks_total"
    return Tally(
        **{field: sum(int(sample.value) for sample in samples if sample.name == name) for field, name in values.items()}
    )


class Fickle(SpController):
    """Turns speculation on and off from step to step."""

    def __init__(self, random: Random, off: float) -> None:
        super().__init__(2, always=True)
        self._random = random
        self._off = off

    def decide(self, batch: int) -> Reason:
        return Reason.DOES_NOT_PAY if self._random.random() < self._off else Reason.PAYS


@pytest.mark.timeout(600)
@settings(deadline=None, max_examples=400, suppress_health_check=[HealthCheck.too_slow])
@given(
    stages=st.integers(2, 4),
    events=events(longest_prompt=60, most_tokens=30),
    seed=st.integers(0, 2**32),
    hit=st.sampled_from([0.0, 0.3, 0.6, 0.9, 1.0]),
    drop=st.sampled_from([0.0, 0.0, 0.25, 0.7]),
    off=st.sampled_from([0.0, 0.0, 0.1, 0.5]),
)
def test_every_schedule_says_what_no_schedule_says(
    configs: Configs,
    stages: int,
    events: list[tuple[str, int, int]],
    seed: int,
    hit: float,
    drop: float,
    off: float,
) -> None:
    run = pipeline(configs[stages], stages, seed, hit, drop)
    traced = trace_everything(run.scheduler)
    random = Random(seed)
    run.scheduler._controller = Fickle(Random(seed + 1), off)
    expected: dict[str, list[int]] = {}
    aborted: set[str] = set()
    for kind, first, second in events:
        if kind == "add":
            name = f"r{len(expected)}"
            # Few different beginnings, so that prefixes are shared, generated ones too.
            prompt = [random.randrange(2)] + [3] * (first - 1)
            # min_tokens is the sampler's affair: it never samples a stop token too early.
            sampling = SamplingParams(max_tokens=second, stop_token_ids=[STOP_TOKEN], temperature=0)
            expected[name] = reference(prompt, sampling)
            run.add(name, prompt, sampling)
        elif kind == "abort" and expected:
            name = f"r{first % len(expected)}"
            run.scheduler.finish_requests([name], RequestStatus.FINISHED_ABORTED)
            aborted |= {name} - run.finished
        else:
            for _ in range(first):
                run.turn()
    run_to_the_end(run)
    for name, answer in expected.items():
        if name in aborted:
            assert run.answers[name] == answer[: len(run.answers[name])], name
        else:
            assert run.answers[name] == answer, name
    assert run.scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == BLOCKS - 1
    assert run.skipped <= counted(run.scheduler).flushed
    assert traced.tally() == counted(run.scheduler), "spans and metrics differ"
    assert not run.scheduler._recorder.is_active, "a traced request was never given away"
