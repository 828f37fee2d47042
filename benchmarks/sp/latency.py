"""Normalized latency under Poisson arrivals: seconds from arrival to the last token, over the answer's tokens.

As many sequences run at once as KV memory holds (``max_num_seqs``); the others wait.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from statistics import mean, median

from benchmarks.forerun_run import generate
from benchmarks.plain_vllm import Answer
from benchmarks.sp.findings import Findings
from benchmarks.sp.systems import ForerunSystem

LOADS = (0.5, 0.8, 1.1, 1.4)
"""Arrival rates as shares of the pace at which the pipeline without speculation serves a crowd, whose start and end do
not fill it; so it is full somewhat beyond 1."""
SECONDS = 20.0
"""Of arrivals at each rate."""
ANSWER_TOKENS = (16, 48)
"""Shortest and longest answer; each length in between is as likely."""
KNEE = 2.0
"""A rate is beyond the knee when the pipeline's latency is so many times that at the lowest rate."""
CROWDS = 3
"""Times ``max_num_seqs`` requests, all at once, whose pace is what a system can serve."""


@dataclass(frozen=True)
class Arrival:
    """One request, ``at_s`` seconds after the first could have come."""

    at_s: float
    prompt: Sequence[int]
    max_tokens: int


@dataclass
class Load:
    """One arrival rate, and the mean normalized latency of each system by round, in milliseconds a token."""

    share: float
    requests_per_s: float
    pp: list[float] = field(default_factory=list)
    sp: list[float] = field(default_factory=list)


async def fastest(
    pipelines: Mapping[str, ForerunSystem], prompts: Sequence[Sequence[int]], batch: int, advance: Callable[[], None]
) -> tuple[str, float]:
    """The pipeline that serves a crowd fastest, ``batch`` sequences at once, and its requests per second."""
    crowd = [Arrival(0.0, each.prompt, each.max_tokens) for each in arrivals(prompts, CROWDS * batch, 1.0, seed=0)]
    pace = {}
    for name, system in pipelines.items():
        started = time.monotonic()
        await _serve(system, crowd)
        pace[name] = len(crowd) / (time.monotonic() - started)
        advance()
    best = max(pace, key=lambda name: pace[name])
    return best, pace[best]


async def measure_latency(
    sp: ForerunSystem,
    pp: ForerunSystem,
    capacity: float,
    prompts: Sequence[Sequence[int]],
    rounds: int,
    advance: Callable[[], None],
) -> list[Load]:
    """Both systems in turn with the same arrivals, at each rate; calls ``advance`` after each of them.

    ``capacity``: requests per second that ``pp`` can serve.
    """
    loads = [Load(share, share * capacity) for share in LOADS]
    for number in range(rounds):
        for index, load in enumerate(loads):
            coming = arrivals(prompts, round(load.requests_per_s * SECONDS), load.requests_per_s, 100 * number + index)
            load.pp.append(_normalized_ms(await _serve(pp, coming)))
            load.sp.append(_normalized_ms(await _serve(sp, coming)))
            advance()
    return loads


def knee(loads: Sequence[Load]) -> Load:
    """The highest rate up to which the pipeline's latency stays under ``KNEE`` times that at the lowest rate."""
    limit = KNEE * median(loads[0].pp)
    reached = loads[0]
    for load in loads:
        if median(load.pp) >= limit:
            break
        reached = load
    return reached


def report_latency(loads: Sequence[Load], findings: Findings) -> None:
    """``sp_latency_ratio_knee`` (PP's latency over SP's, by round) and both latencies at every rate."""
    at_knee = knee(loads)
    findings.add("sp_latency_ratio_knee", [pp / sp for pp, sp in zip(at_knee.pp, at_knee.sp, strict=True)])
    for load in loads:
        findings.add(f"pp_latency_ms_at_load_{100 * load.share:.0f}", load.pp)
        findings.add(f"sp_latency_ms_at_load_{100 * load.share:.0f}", load.sp)


def arrivals(prompts: Sequence[Sequence[int]], count: int, requests_per_s: float, seed: int) -> list[Arrival]:
    """A Poisson process: ``count`` requests with exponential gaps, from the same seed always the same."""
    random = Random(seed)
    now, result = 0.0, []
    for _ in range(count):
        now += random.expovariate(requests_per_s)
        result.append(Arrival(now, random.choice(prompts), random.randint(*ANSWER_TOKENS)))
    return result


async def _serve(system: ForerunSystem, coming: Sequence[Arrival]) -> list[Answer]:
    async def one(arrival: Arrival) -> Answer:
        await asyncio.sleep(arrival.at_s)
        (answer,) = await generate(system.client, [arrival.prompt], arrival.max_tokens)
        return answer

    return list(await asyncio.gather(*(one(arrival) for arrival in coming)))


def _normalized_ms(answers: Sequence[Answer]) -> float:
    return mean(1000 * (answer.times[-1] - answer.started) / len(answer.tokens) for answer in answers)
