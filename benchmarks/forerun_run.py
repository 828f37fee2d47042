"""Drives a running Forerun as a client would and notes when every token came."""

import asyncio
import time
from collections.abc import Callable, Sequence

import httpx
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.plain_vllm import Answer
from services.client.client import ForerunClient
from services.common.types import Delta, SamplingOptions


async def generate(
    client: ForerunClient,
    prompts: Sequence[Sequence[int]],
    max_tokens: int,
    *,
    one_by_one: bool = False,
    seed: int | None = None,
    all_decode: asyncio.Event | None = None,
) -> list[Answer]:
    """Greedy (or seeded, at temperature 1) answers of exactly ``max_tokens`` tokens, streamed.

    ``all_decode`` is set when every request has its first token.
    """
    sampling = SamplingOptions(
        temperature=0.0 if seed is None else 1.0, seed=seed, max_tokens=max_tokens, ignore_eos=True
    )
    if one_by_one:
        return [await _one(client, prompt, sampling) for prompt in prompts]
    waiting = len(prompts)

    def on_first() -> None:
        nonlocal waiting
        waiting -= 1
        if not waiting and all_decode is not None:
            all_decode.set()

    return list(await asyncio.gather(*(_one(client, prompt, sampling, on_first) for prompt in prompts)))


def decode_throughput(answers: Sequence[Answer]) -> float:
    """Tokens per second while every request decodes: from the last first token to the first last token."""
    begin = max(answer.times[0] for answer in answers)
    end = min(answer.times[-1] for answer in answers)
    tokens = sum(1 for answer in answers for when in answer.times if begin < when <= end)
    return tokens / (end - begin)


def scrape(addresses: Sequence[str], prefix: str, label: str = "") -> dict[str, float]:
    """Sums of the samples whose names start with ``prefix``, over the metrics pages at ``addresses``.

    Samples that have ``label`` are kept apart by it: ``name{label=value}``.
    """
    sums: dict[str, float] = {}
    for address in addresses:
        text = httpx.get(f"http://{address}/metrics", timeout=10).text
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name.startswith(prefix):
                    value = sample.labels.get(label)
                    name = sample.name if value is None else f"{sample.name}{{{label}={value}}}"
                    sums[name] = sums.get(name, 0.0) + sample.value
    return sums


async def _one(
    client: ForerunClient, prompt: Sequence[int], sampling: SamplingOptions, on_first: Callable[[], None] = lambda: None
) -> Answer:
    answer = Answer([], [], time.monotonic())
    async for event in client.generate(tuple(prompt), sampling):
        if isinstance(event, Delta):
            if not answer.tokens:
                on_first()
            answer.tokens.extend(event.token_ids)
            answer.times.extend([time.monotonic()] * len(event.token_ids))
    return answer
