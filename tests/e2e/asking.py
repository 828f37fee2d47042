"""Every kind of request and what was said to it, for tests that compare one replica's answers with another's."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path
from typing import Any

from benchmarks.prompts import varied_prompts
from benchmarks.systems import forerun_config
from services.client.client import ForerunClient
from services.common.outcome import Outcome
from services.common.types import Delta, Finished, SamplingOptions, StructuredOutput
from tests.support.tiny_checkpoint import write_tiny_checkpoint

TOKENS = 16
BLOCKS = 40
GREEDY = SamplingOptions(temperature=0.0, max_tokens=TOKENS, ignore_eos=True)
KINDS: dict[str, SamplingOptions] = {
    "greedy": GREEDY,
    "to its own end": replace(GREEDY, ignore_eos=False, min_tokens=3),
    "penalties": replace(GREEDY, repetition_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.2),
    "logprobs": replace(GREEDY, logprobs=3, prompt_logprobs=1),
    "stop string": replace(GREEDY, stop=(" the", "."), min_tokens=2),
    "one token": replace(GREEDY, max_tokens=1),
    "bias": replace(GREEDY, logit_bias={198: 4.0}, bad_words=("The",)),
    "regex": replace(GREEDY, structured_output=StructuredOutput("regex", r"(yes|no), [a-z ]{4,20}"), max_tokens=12),
}
KINDS_OF_LONG_PROMPTS = ("greedy", "penalties")
SEEDED = SamplingOptions(temperature=1.0, seed=11, max_tokens=TOKENS, ignore_eos=True, n=2)


@dataclass(frozen=True)
class Said:
    """What a client got of one request."""

    tokens: tuple[tuple[int, ...], ...]
    """Of each choice."""
    text: str
    candidates: tuple[tuple[int, ...], ...]
    outcome: Outcome


async def said(client: ForerunClient, prompt: list[int], sampling: SamplingOptions) -> Said:
    tokens: dict[int, list[int]] = {index: [] for index in range(sampling.n)}
    text, candidates, outcome = "", [], None
    async for event in client.generate(tuple(prompt), sampling):
        if isinstance(event, Delta):
            tokens[event.index].extend(event.token_ids)
            text += event.text
            candidates.extend(tuple(each.token_id for each in position) for position in event.logprobs)
        elif isinstance(event, Finished):
            outcome = event.outcome
    assert outcome is not None
    return Said(tuple(map(tuple, tokens.values())), text if sampling.n == 1 else "", tuple(candidates), outcome)


@dataclass(frozen=True)
class Model:
    """A target, what it is asked, and KV blocks so few that requests preempt one another."""

    path: Path
    prompts: list[list[int]]
    long_prompt: list[int]
    """Prefilled in pieces; asked for some kinds only."""
    block_size: int

    def config(self, stages: int, **replica: Any) -> dict[str, Any]:
        """Steps so small that prompts are prefilled in pieces."""
        made = forerun_config(
            self.path,
            stages,
            "float32",
            enable_prefix_caching=True,
            max_num_batched_tokens=256,
            max_model_len=BLOCKS * self.block_size // 2,
            block_size=self.block_size,
            num_gpu_blocks_override=BLOCKS,
        )
        made["replicas"][0].update(replica)
        return made


def real_model(path: Path) -> Model:
    varied = varied_prompts(path, 20)
    short = [prompt for prompt in varied if len(prompt) < 200]
    return Model(path, short[:3], next(prompt for prompt in varied if 900 < len(prompt) < 1600), block_size=128)


def tiny_model(path: Path) -> Model:
    """Each byte is a token; the prompts begin alike, so that blocks are shared."""
    write_tiny_checkpoint(path, layers=8, hidden_size=128, spread=0.1)
    prompts = [list(b"Once upon a time there was a number" + bytes([48 + index]) * index * 9) for index in range(6)]
    return Model(path, prompts, list(range(30, 230)) * 3, block_size=32)


Answers = dict[tuple[str, int], Said]


async def everything(client: ForerunClient, model: Model, wishes: Sequence[Mapping[str, Any]] = ({},)) -> Answers:
    """Every prompt with every kind of options, all at once: those that speculate beside those that cannot.

    Args:
        wishes: further options, of the requests in turn.
    """
    asked = {(kind, index): (prompt, KINDS[kind]) for kind in KINDS for index, prompt in enumerate(model.prompts)}
    asked |= {(kind, len(model.prompts)): (model.long_prompt, KINDS[kind]) for kind in KINDS_OF_LONG_PROMPTS}
    told = ((prompt, replace(options, **wish)) for (prompt, options), wish in zip(asked.values(), cycle(wishes)))
    answers = await asyncio.gather(*(said(client, *each) for each in told))
    return dict(zip(asked, answers, strict=True))
