"""Random schedules through the real scheduler with experts against a model that needs no schedule."""

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

from services.common.expert import Expert
from services.scheduler.vllm_experts_scheduler import ExpertsScheduler
from tests.e2e.experts_pipeline import STOP_TOKEN, ExpertsPipeline, RandomPolicy, reference
from tests.e2e.schedules import Configs, build_scheduler, events, run_to_the_end, stage_configs

BLOCK_SIZE = 4
BLOCKS = 41
"""So few that a handful of requests preempt one another."""

MAX_MODEL_LEN = 120


@pytest.fixture(scope="module")
def configs(model_path: Path) -> Configs:
    drafter = {"kind": "draft_model", "model": "none"}
    return stage_configs(
        model_path,
        (1,),
        {"experts": {"drafter": drafter, "ngram": {"shortest_match": 1, "longest_match": 3}}},
        max_model_len=MAX_MODEL_LEN,
        max_num_batched_tokens=48,
        block_size=BLOCK_SIZE,
        enable_prefix_caching=True,
        per_request_spec_decode_metrics="summary",
        # Verification is all that this model of a stage needs of vLLM; the neural drafter is the test's own.
        speculative_config={
            "method": "custom_class",
            "model": "services.workers.vllm_lazy_drafter.NoDrafter",
            "num_speculative_tokens": 16,
        },
    )


def counted(scheduler: Any, name: str) -> dict[str, float]:
    """A counter's values by expert."""
    values: dict[str, float] = {}
    for metric in scheduler._registry.collect():
        for sample in metric.samples:
            if sample.name == f"forerun_spec_{name}_total":
                values[sample.labels["expert"]] = values.get(sample.labels["expert"], 0.0) + sample.value
    return values


@pytest.mark.timeout(600)
@settings(deadline=None, max_examples=400, suppress_health_check=[HealthCheck.too_slow])
@given(
    events=events(longest_prompt=60, most_tokens=30),
    seed=st.integers(0, 2**32),
    hit=st.sampled_from([0.0, 0.5, 0.9, 1.0]),
)
def test_every_schedule_says_what_no_schedule_says(
    configs: Configs, events: list[tuple[str, int, int]], seed: int, hit: float
) -> None:
    scheduler = build_scheduler(ExpertsScheduler, configs[1], BLOCKS)
    init_none_hash(sha256)
    random = Random(seed)
    run = ExpertsPipeline(scheduler, BLOCK_SIZE, random, hit, get_request_block_hasher(BLOCK_SIZE, sha256))
    policy = scheduler._blocks.policy = RandomPolicy(Random(seed + 1))
    expected: dict[str, list[int]] = {}
    aborted: set[str] = set()
    for kind, first, second in events:
        if kind == "add":
            name = f"r{len(expected)}"
            prompt = [random.randrange(2)] + [3] * (first - 1)
            sampling = SamplingParams(
                max_tokens=second,
                stop_token_ids=[STOP_TOKEN],
                temperature=0,
                # Some ask for what some cannot have.
                extra_args=random.choice([None, {"forerun_expert": "eagle3"}, {"forerun_draft_tokens": 3}]),
                min_p=random.choice([0.0, 0.0, 0.1]),
            )
            expected[name] = reference(prompt, sampling)
            run.add(name, prompt, sampling)
        elif kind == "abort" and expected:
            name = f"r{first % len(expected)}"
            scheduler.finish_requests([name], RequestStatus.FINISHED_ABORTED)
            aborted |= {name} - run.finished
        else:
            for _ in range(first):
                run.turn()
    run_to_the_end(run)
    for name, answer in expected.items():
        said = run.answers[name]
        assert said == (answer[: len(said)] if name in aborted else answer), name
    assert scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == BLOCKS - 1
    assert not scheduler._blocks._live, "a request is still remembered"
    blocks = policy.observed
    for name, of_block in (
        ("drafted_tokens", "drafted"),
        ("accepted_tokens", "kept"),
        ("emitted_tokens", "emitted"),
    ):
        sums = {
            each: sum(getattr(block, of_block) for block in blocks if block.choice.expert == each) for each in Expert
        }
        assert counted(scheduler, name) == {each: sums[each] for each in scheduler._settings.experts.experts}
    if not aborted:
        told = [sum(of_requests) for of_requests in zip(*run.histograms, strict=True)]
        drafted = [block.kept for block in blocks if block.drafted]
        assert told == [drafted.count(kept) for kept in range(len(told))]
    assert run.verified == [sum(block.drafted for block in blocks), sum(block.accepted for block in blocks)]
    assert all(block.emitted <= block.accepted + 1 and block.accepted <= block.drafted for block in blocks)
