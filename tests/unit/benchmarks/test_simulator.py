"""The simulated replica, under the production policies."""

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.simulator.fleet import Clock, simulate
from benchmarks.simulator.fleets import bursts
from benchmarks.simulator.replay import replay
from benchmarks.simulator.replica import Job, ReplicaShape, SimulatedReplica
from services.scheduler.lookahead.config import AdmissionConfig
from services.scheduler.lookahead.policies import make_policy

POLICIES = ("aggressive", "reserve-full", "lookahead")


def step_s(decodes: int, prefilled: int) -> float:
    return 0.01 + 0.001 * decodes + 0.0005 * prefilled


def replica(policy: str, clock: Callable[[], float], blocks: int = 60, **shape: int) -> SimulatedReplica:
    made = make_policy(AdmissionConfig.model_validate({"policy": policy}))
    return SimulatedReplica(ReplicaShape(blocks, **shape), step_s, made, clock)


def crowd(count: int, seed: int = 0, rate: float = 2.0) -> list[Job]:
    random, now, jobs = Random(seed), 0.0, []
    for index in range(count):
        now += random.expovariate(rate)
        jobs.append(Job(f"r{index}", now, random.randint(10, 100), random.randint(1, 300), random.choice((50, 400))))
    return jobs


@settings(deadline=None, max_examples=40)
@given(
    policy=st.sampled_from(POLICIES), seed=st.integers(0, 10**6), count=st.integers(1, 30), budget=st.integers(20, 300)
)
def test_every_job_ends_at_its_length_and_no_block_leaks(policy: str, seed: int, count: int, budget: int) -> None:
    clock = Clock()
    one = replica(policy, clock, token_budget=budget)
    ended = simulate([one], clock, crowd(count, seed))
    assert len(ended) == count
    assert all(job.generated == min(job.answer, job.max_tokens) for job in ended)
    assert all(job.arrived_s <= job.started_s <= job.ended_s for job in ended if job.started_s and job.ended_s)
    assert one.used == 0
    assert not one.has_work
    if policy == "reserve-full":
        assert one.totals.preemptions == 0


def test_one_request_takes_its_prefill_and_a_step_for_each_token() -> None:
    clock = Clock()
    (job,) = simulate([replica("aggressive", clock)], clock, [Job("r", 1.0, prompt=50, answer=5, max_tokens=100)])
    assert job.ended_s == pytest.approx(1.0 + step_s(0, 50) + 4 * step_s(1, 0))


def test_looking_ahead_preempts_less_and_serves_more() -> None:
    served, preempted = {}, {}
    for policy in POLICIES:
        clock = Clock()
        one = replica(policy, clock, blocks=100)
        ended = simulate([one], clock, crowd(150, seed=3, rate=4.0))
        served[policy] = sum(job.generated for job in ended) / clock.now
        preempted[policy] = one.totals.preemptions
    assert preempted["lookahead"] < 0.2 * preempted["aggressive"]
    assert served["lookahead"] > 1.03 * served["aggressive"]


def test_a_fleet_shares_the_load() -> None:
    clock = Clock()
    fleet = [replica("lookahead", clock) for _ in range(4)]
    assert len(simulate(fleet, clock, crowd(60))) == 60
    assert all(one.totals.steps > 50 for one in fleet)


def test_bursts_bring_what_they_promise() -> None:
    jobs = list(bursts(20_000, mean_rate=10.0, seed=1))
    assert jobs[-1].arrived_s == pytest.approx(2000, rel=0.05)
    inside = sum(job.arrived_s % 60 < 12 for job in jobs)
    assert inside / len(jobs) == pytest.approx(3 * 0.2 / 1.4, abs=0.03)


def test_a_replay_of_its_own_run_has_no_error() -> None:
    requests = [[job.arrived_s, job.prompt, job.max_tokens, min(job.answer, job.max_tokens)] for job in crowd(40)]
    times = {"batches": (1, 16), "decode_s": (0.011, 0.026), "prefill_fixed_s": 0.01, "prefill_token_s": 0.0005}
    details = {
        "options": {"max_num_seqs": 8, "max_delay": 10.0},
        "kv_blocks": {"aggressive": 60},
        "block_size": 16,
        "step_times": [times],
        "runs": {"aggressive": [{"preemptions": 0, "seconds": 1.0, "requests": requests}]},
    }
    (first,) = replay(details)
    tokens = sum(answer for *_, answer in requests)
    details["runs"]["aggressive"][0] |= {
        "preemptions": first.preemptions[1],
        "seconds": tokens / first.throughput[1],
    }
    (again,) = replay(details)
    assert again.throughput_error == pytest.approx(0)
    assert again.preemption_error == 0
