"""How long a replica's steps take, by what is in them: what the simulator needs to stand in for it."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from benchmarks.forerun_run import decode_throughput, generate
from services.client.client import ForerunClient

BATCHES = (1, 2, 4, 8, 16)
DECODED = 24
"""Tokens of each request while a batch is timed."""
SHORT = 32
"""Tokens of their prompts: so few that a small KV pool holds all, and one step prefills them."""
PREFILLS = (32, 128, 512)
"""Tokens of the prompts that are timed alone."""
REPEATS = 3


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Seconds of a step: of its decoding rows by interpolation, and of each token that it prefills beside them."""

    batches: tuple[int, ...]
    decode_s: tuple[float, ...]
    """By ``batches``."""
    prefill_fixed_s: float
    """Of a step that only prefills, without its tokens."""
    prefill_token_s: float

    def __call__(self, decodes: int, prefilled: int) -> float:
        """Of a step with so many decoding requests and prefilled tokens."""
        fixed = float(np.interp(decodes, self.batches, self.decode_s)) if decodes else self.prefill_fixed_s
        return fixed + self.prefill_token_s * prefilled


async def calibrate(client: ForerunClient, prompts: Sequence[Sequence[int]]) -> StepTimes:
    """Times a replica that has nothing else to do. ``prompts``: any text."""
    decode_s = []
    for batch in BATCHES:
        answers = await generate(client, [prompt[:SHORT] for prompt in prompts[:batch]], DECODED)
        decode_s.append(batch / decode_throughput(answers))
    text = [token for prompt in prompts for token in prompt]
    first_s = []
    for index, length in enumerate(PREFILLS):
        times = []
        for repeat in range(REPEATS):
            begin = (index * REPEATS + repeat) * max(PREFILLS)
            (answer,) = await generate(client, [text[begin : begin + length]], 1)
            times.append(answer.times[0] - answer.started)
        first_s.append(median(times))
    per_token, fixed = np.polyfit(PREFILLS, first_s, 1)
    return StepTimes(BATCHES, tuple(decode_s), max(0.0, float(fixed)), max(0.0, float(per_token)))
