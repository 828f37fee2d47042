"""Fleets of replicas of a 70B-type model under bursts: the policies where no machine here can run them."""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from statistics import mean

from benchmarks.lookahead.calibration import StepTimes
from benchmarks.simulator.fleet import Clock, simulate
from benchmarks.simulator.replica import Job, ReplicaShape, SimulatedReplica
from services.scheduler.lookahead.config import AdmissionConfig
from services.scheduler.lookahead.policies import make_policy

LARGE_MODEL = StepTimes(
    batches=(1, 64, 256), decode_s=(0.035, 0.042, 0.070), prefill_fixed_s=0.035, prefill_token_s=0.00012
)
"""Of a 70B-type model on four accelerators, in round numbers: bound by memory up to some dozen sequences."""

LARGE_REPLICA = ReplicaShape(blocks=3000, max_num_seqs=128, token_budget=8192, longest=8192)
"""With KV memory for 48,000 tokens."""

BURST_EVERY_S, BURST_SHARE, BURST_FACTOR = 60.0, 0.2, 3.0
"""A fifth of each minute brings three times the usual arrivals of the rest."""


@dataclass(frozen=True, slots=True)
class FleetResult:
    """One policy on one fleet."""

    tokens_per_s: float
    normalized_ms: float
    preemptions: int
    p99_queue_s: float


def run_fleet(policy: str, replicas: int, requests_per_replica: int, rate_per_replica: float, seed: int) -> FleetResult:
    """Every request of a fleet, each at the replica with the fewest."""
    clock = Clock()
    config = AdmissionConfig.model_validate({"policy": policy})
    fleet = [SimulatedReplica(LARGE_REPLICA, LARGE_MODEL, make_policy(config), clock) for _ in range(replicas)]
    jobs = bursts(requests_per_replica * replicas, rate_per_replica * replicas, seed)
    ended = simulate(fleet, clock, jobs)
    waits = sorted(job.queued_s for job in ended)
    return FleetResult(
        tokens_per_s=sum(job.generated for job in ended) / clock.now,
        normalized_ms=mean(1e3 * job.seconds / job.generated for job in ended),
        preemptions=sum(replica.totals.preemptions for replica in fleet),
        p99_queue_s=waits[int(0.99 * len(waits))],
    )


def bursts(count: int, mean_rate: float, seed: int) -> Iterator[Job]:
    """Conversations whose answers differ widely in length, by a Poisson process whose rate jumps."""
    random, now = Random(seed), 0.0
    usual = mean_rate / (1 + BURST_SHARE * (BURST_FACTOR - 1))
    for index in range(count):
        in_burst = now % BURST_EVERY_S < BURST_SHARE * BURST_EVERY_S
        now += random.expovariate(usual * (BURST_FACTOR if in_burst else 1.0))
        prompt = min(4000, round(random.lognormvariate(6.0, 0.9)) + 16)
        answer = round(random.lognormvariate(5.5, 0.8)) + 1
        yield Job(f"r{index}", now, prompt, answer, random.choice((512, 2048)))
