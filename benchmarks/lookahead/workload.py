"""Requests as they come: a Poisson process of questions whose answers end by themselves."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from services.client.client import ForerunClient
from services.common.errors import RequestEndedError
from services.common.types import Finished, SamplingOptions, Usage

LONGEST_ANSWERS = (64, 256)
"""Limits that clients set, each as likely; most answers end before."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request, ``at_s`` seconds after the start."""

    at_s: float
    prompt: Sequence[int]
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Served:
    """One request's end; times in seconds."""

    arrival: Arrival
    seconds: float
    """From arrival to the last token, as its client saw it."""
    usage: Usage

    def replayed(self) -> list[float]:
        """For the simulator: arrival, prompt tokens, limit, answer tokens."""
        arrival = self.arrival
        return [round(arrival.at_s, 3), len(arrival.prompt), arrival.max_tokens, self.usage.output_tokens]


@dataclass(frozen=True, slots=True)
class Run:
    """All requests of one run."""

    served: Sequence[Served]
    seconds: float
    """From the first arrival to the last end."""

    @property
    def tokens_per_s(self) -> float:
        """Answers' tokens over the whole run."""
        return sum(each.usage.output_tokens for each in self.served) / self.seconds

    @property
    def normalized_ms(self) -> float:
        """Mean over the requests of latency over the answer's tokens."""
        return sum(1e3 * each.seconds / max(1, each.usage.output_tokens) for each in self.served) / len(self.served)

    def queue_seconds(self, share: float) -> float:
        """So long, or less, did ``share`` of the requests wait for their first step."""
        waits = sorted(each.usage.queue_seconds or 0.0 for each in self.served)
        return waits[min(len(waits) - 1, int(share * len(waits)))]


def arrivals(prompts: Sequence[Sequence[int]], count: int, requests_per_s: float, seed: int) -> list[Arrival]:
    """``count`` requests with exponential gaps, from the same seed always the same."""
    random, now, result = Random(seed), 0.0, []
    for _ in range(count):
        now += random.expovariate(requests_per_s)
        result.append(Arrival(now, random.choice(prompts), random.choice(LONGEST_ANSWERS)))
    return result


def crowd(prompts: Sequence[Sequence[int]], count: int, tokens: int) -> list[Arrival]:
    """Short answers to ``count`` requests, all at once."""
    return [Arrival(0.0, prompt, tokens) for prompt in prompts[:count]]


async def serve(client: ForerunClient, coming: Sequence[Arrival]) -> Run:
    """Sends every request at its time.

    Raises:
        RequestEndedError: one did not end well.
    """
    started = time.monotonic()
    served = await asyncio.gather(*(_one(client, arrival, started) for arrival in coming))
    return Run(served, time.monotonic() - started)


async def _one(client: ForerunClient, arrival: Arrival, started: float) -> Served:
    await asyncio.sleep(started + arrival.at_s - time.monotonic())
    sent = time.monotonic()
    sampling = SamplingOptions(temperature=0.0, max_tokens=arrival.max_tokens)
    async for event in client.generate(tuple(arrival.prompt), sampling):
        if isinstance(event, Finished):
            if not event.outcome.is_success:
                raise RequestEndedError(event.outcome, event.message)
            return Served(arrival, time.monotonic() - sent, event.usage)
    raise RuntimeError("a stream ended without an end")
