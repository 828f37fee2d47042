"""Admission policies in the real scheduler, over a fake model and a pool too small for all."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from vllm.sampling_params import SamplingParams, StructuredOutputsParams
from vllm.v1.request import Request

from services.scheduler.lookahead.answer_lengths import AnswerLengths
from services.scheduler.lookahead.config import AdmissionConfig
from services.scheduler.lookahead.policies import Reason, make_policy
from services.scheduler.vllm_admission import AdmissionGate
from tests.e2e.plain_pipeline import PlainPipeline, carry_out
from tests.e2e.schedules import MAX_REQUESTS, Configs, events, stage_configs

BLOCK_SIZE = 4
BLOCKS = 41
POLICIES = ("aggressive", "reserve-full", "lookahead")


class Play:
    """A pipeline under a policy, by its own clock: a turn takes a second, and a tenth more for each token."""

    def __init__(self, config: Any, stages: int, policy: str, max_delay_s: float = 30.0) -> None:
        self.pipeline = PlainPipeline(config, stages, BLOCKS)
        self.turns = 0
        self.registry = CollectorRegistry()
        self.started: list[str] = []
        scheduler = self.scheduler = self.pipeline.scheduler
        made = make_policy(AdmissionConfig.model_validate({"policy": policy, "max_delay_s": max_delay_s}))
        scheduler._gate = made and AdmissionGate(scheduler, made, AnswerLengths(120, 20), self.registry, self.clock)

    def clock(self) -> float:
        return self.turns + 0.1 * self.pipeline.computed

    def turn(self) -> None:
        before = {request.request_id for request in self.scheduler.running}
        self.turns += 1
        self.pipeline.turn()
        self.started += [each.request_id for each in self.scheduler.running if each.request_id not in before]

    def finish(self) -> None:
        for _ in range(20_000):
            if not (self.scheduler.has_requests() or self.pipeline.in_flight):
                return
            self.turn()
        pytest.fail("a request never ended")

    def count(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(name, labels or None) or 0.0

    @property
    def preemptions(self) -> int:
        return int(self.scheduler._registry.get_sample_value("forerun_preemptions_total") or 0)


@pytest.fixture(scope="module")
def configs(model_path: Path) -> Configs:
    return make_configs(model_path, (1, 2))


@pytest.fixture(scope="module")
def fair_configs(model_path: Path) -> Configs:
    return make_configs(model_path, (1,), {"fair_share": True}, scheduling_policy="priority")


def make_configs(
    model: Path, stages: tuple[int, ...], admission: dict[str, Any] | None = None, **engine_args: Any
) -> Configs:
    return stage_configs(
        model,
        stages,
        {"admission": admission or {}},
        max_model_len=120,
        max_num_batched_tokens=32,
        block_size=BLOCK_SIZE,
        enable_prefix_caching=False,
        **engine_args,
    )


@pytest.mark.timeout(300)
@settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow])
@given(
    stages=st.sampled_from((1, 2)),
    policy=st.sampled_from(("reserve-full", "lookahead")),
    events=events(longest_prompt=60, most_tokens=50),
)
def test_every_request_ends_and_starts_in_the_order_of_arrival(
    configs: Configs, stages: int, policy: str, events: list[tuple[str, int, int]]
) -> None:
    play = Play(configs[stages], stages, policy)
    wanted = carry_out(events, play.scheduler, play.pipeline.add, play.turn)
    play.finish()
    for name, count in wanted.items():
        assert count in (-1, play.pipeline.tokens[name]), name
    assert play.scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == BLOCKS - 1
    first_starts = list(dict.fromkeys(play.started))
    assert first_starts == sorted(first_starts), "the order of arrival is kept"
    keeper = play.scheduler._gate._keeper
    assert not keeper._held_back
    assert not keeper._decided
    if policy == "reserve-full":
        assert play.preemptions == 0


def test_a_pool_that_vllm_over_fills_is_not_over_filled(configs: Configs) -> None:
    """Known failures, row H5: many long answers in a pool for few."""
    preemptions = {}
    for policy in POLICIES:
        play = Play(configs[1], 1, policy, max_delay_s=1000)
        for index in range(16):
            play.pipeline.add(f"r{index}", 20, 60)
        play.finish()
        preemptions[policy] = play.preemptions
    assert preemptions["aggressive"] >= 10
    assert preemptions["reserve-full"] == 0
    assert preemptions["lookahead"] <= 0.2 * preemptions["aggressive"]


def test_a_long_job_under_an_endless_short_stream_ends(configs: Configs) -> None:
    """Known failures, row H10."""
    for policy in POLICIES:
        play = Play(configs[1], 1, policy)
        for index in range(6):
            play.pipeline.add(f"early{index}", 20, 8)
        play.pipeline.add("long", 60, 50)
        turns = 0
        while "long" in play.scheduler.requests:
            play.pipeline.add(f"short{turns}", 12, 4)
            play.turn()
            turns += 1
            assert turns < 500, policy


def test_nobody_waits_longer_than_the_bound_for_a_forecast(configs: Configs) -> None:
    play = Play(configs[1], 1, "lookahead", max_delay_s=10)
    for index in range(8):
        play.pipeline.add(f"r{index}", 20, 60)
    play.finish()
    assert play.count("forerun_admission_admitted_total", reason=Reason.OVERDUE.value) > 0
    assert play.count("forerun_admission_held_back_steps_total", reason=Reason.MEMORY.value) > 0
    waits = play.count("forerun_admission_delay_seconds_sum")
    assert waits <= (10 + 5) * play.count("forerun_admission_delay_seconds_count")


def test_with_room_for_all_nothing_is_held_back(configs: Configs) -> None:
    play = Play(configs[1], 1, "lookahead")
    for index in range(4):
        play.pipeline.add(f"r{index}", 12, 8)
    play.turn()
    play.turn()
    assert len(play.scheduler.running) == 4
    play.finish()
    assert play.count("forerun_admission_delay_seconds_sum") == 0
    assert play.count("forerun_admission_delay_seconds_count") == 4


class AnyText:
    """A grammar that has nothing against any token."""

    def accept_tokens(self, _request_id: str, _tokens: list[int]) -> bool:
        return True

    def is_terminated(self) -> bool:
        return False


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("before", [0, 2])
def test_a_request_whose_grammar_is_compiled_first_starts_then(configs: Configs, policy: str, before: int) -> None:
    play = Play(configs[1], 1, policy)
    for index in range(before):
        play.pipeline.add(f"r{index}", 8, 4)
    sampling = SamplingParams(max_tokens=4, ignore_eos=True, structured_outputs=StructuredOutputsParams(regex="a+"))
    request = Request("late", [1, 2, 3], sampling, None)
    play.scheduler.add_request(request)
    play.pipeline.tokens["late"] = 0
    for _ in range(10):
        play.turn()
    assert [each.request_id for each in play.scheduler.waiting] == ["late"]
    assert len(play.started) == before, "those that are ready have passed it"
    request.structured_output_request.grammar = AnyText()
    play.finish()
    assert play.pipeline.tokens["late"] == 4


def test_the_urgent_start_first(model_path: Path) -> None:
    """Known failures, row H2: priorities decide who is the first of those that wait."""
    play = Play(make_configs(model_path, (1,), scheduling_policy="priority")[1], 1, "lookahead")
    for index in range(6):
        play.pipeline.add(f"low{index}", 20, 40, priority=5)
    for _ in range(5):
        play.turn()
    waiting = {request.request_id for request in play.scheduler.waiting}
    assert waiting
    play.pipeline.add("urgent", 20, 10, priority=0)
    play.finish()
    assert all(play.started.index("urgent") < play.started.index(name) for name in waiting)


@pytest.mark.parametrize("policy", POLICIES)
def test_an_urgent_request_takes_the_place_of_one_that_is_not(model_path: Path, policy: str) -> None:
    """Known failures, row H2: it would wait until one of the long ones ends."""
    play = Play(make_configs(model_path, (1,), scheduling_policy="priority")[1], 1, policy)
    for index in range(MAX_REQUESTS):
        play.pipeline.add(f"low{index}", 4, 8, priority=5)
    play.turn()
    assert len(play.scheduler.running) == MAX_REQUESTS
    play.pipeline.add("urgent", 4, 2, priority=0)
    play.pipeline.add("as low", 4, 2, priority=5)
    play.turn()
    assert "urgent" in play.started
    assert play.preemptions == 1
    play.finish()
    assert play.preemptions == 1, "who is no more urgent waits"
    assert play.pipeline.tokens == {f"low{index}": 8 for index in range(MAX_REQUESTS)} | {"urgent": 2, "as low": 2}


@pytest.mark.parametrize("policy", ["aggressive", "lookahead"])
def test_tenants_share_by_weight_however_many_requests_one_of_them_has(model_path: Path, policy: str) -> None:
    weights = {"flood": 1.0, "small": 1.0, "large": 3.0}
    fair = {"fair_share": True, "tenant_weights": weights, "expected_answer_tokens": 20}
    play = Play(make_configs(model_path, (1,), fair)[1], 1, policy)
    for number in range(100):
        play.pipeline.add(f"flood{number}", 8, 20, tenant="flood")
    play.turn()
    for number in range(40):
        play.pipeline.add(f"small{number}", 8, 20, tenant="small")
        play.pipeline.add(f"large{number}", 8, 20, tenant="large")
    while "large39" in play.scheduler.requests:
        play.turn()
    starts = list(dict.fromkeys(play.started))  # a preempted one starts again
    served = {tenant: sum(name.startswith(tenant) for name in starts) for tenant in weights}
    assert served["large"] == 40
    assert served["small"] == pytest.approx(40 / 3, abs=4)
    assert served["flood"] == pytest.approx(8 + 40 / 3, abs=5), "the first eight found nobody else"
    for tenant in weights:
        of_tenant = [name for name in starts if name.startswith(tenant)]
        assert of_tenant == sorted(of_tenant, key=lambda name: int(name.lstrip("abcdefghijklmnopqrstuvwxyz")))
    play.finish()


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(events=events(longest_prompt=60, most_tokens=50), data=st.data())
def test_a_fair_queue_loses_nobody(
    fair_configs: Configs, events: list[tuple[str, int, int]], data: st.DataObject
) -> None:
    play = Play(fair_configs[1], 1, data.draw(st.sampled_from(POLICIES)))

    def add(name: str, prompt: int, tokens: int) -> None:
        play.pipeline.add(name, prompt, tokens, data.draw(st.integers(0, 2)), data.draw(st.sampled_from("abc")))

    wanted = carry_out(events, play.scheduler, add, play.turn)
    play.finish()
    for name, count in wanted.items():
        assert count in (-1, play.pipeline.tokens[name]), name
    assert not play.scheduler.waiting
    assert play.scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == BLOCKS - 1
