"""Speculative parallelism with real stages: whatever is asked for, the answer is the one without speculation.

One stage, which runs ahead on its own samples, is the baseline (that one stage says what plain vLLM says is what
``python -m benchmarks.equality`` measures). Two and three stages speculate with untrained adapters, whose drafts rarely
hit, and two with the trained one where there is one.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.forerun_run import scrape
from benchmarks.prompts import varied_prompts
from benchmarks.random_adapter import write_random_adapter
from benchmarks.systems import forerun_config
from services.cli.background import BackgroundSystem
from services.client.client import ForerunClient
from services.common.outcome import Outcome
from services.common.types import Delta, Finished, SamplingOptions, StructuredOutput

pytestmark = pytest.mark.timeout(900)

TRAINED = Path(__file__).parents[2] / "models" / "smollm2-135m" / "adapter-15"
TOKENS = 24
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
SEEDED = SamplingOptions(temperature=1.0, seed=11, max_tokens=TOKENS, ignore_eos=True, n=2)


@dataclass(frozen=True)
class Said:
    """What a client got of one request."""

    tokens: tuple[tuple[int, ...], ...]
    """Of each choice."""
    text: str
    candidates: tuple[tuple[int, ...], ...]
    outcome: Outcome


@pytest.fixture(scope="module")
def prompts(model_path: Path) -> list[list[int]]:
    """Short ones of every kind of work and a longer one that is prefilled in pieces."""
    varied = varied_prompts(model_path, 32)
    return [prompt for prompt in varied if len(prompt) < 200][:5] + [p for p in varied if 900 < len(p) < 1600][:1]


def config(model: Path, stages: int, **replica: Any) -> dict[str, Any]:
    """Steps so small that prompts are prefilled in pieces, and blocks so few that requests preempt one another."""
    made = forerun_config(model, stages, "float32", enable_prefix_caching=True, max_num_batched_tokens=256)
    made["replicas"][0].update(replica)
    made["replicas"][0]["engine_args"]["num_gpu_blocks_override"] = 40
    made["replicas"][0]["engine_args"]["max_model_len"] = 2048
    return made


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


async def everything(client: ForerunClient, prompts: list[list[int]]) -> dict[tuple[str, int], Said]:
    """Every prompt with every kind of options, all at once."""
    asked = {(kind, index): (prompt, KINDS[kind]) for kind in KINDS for index, prompt in enumerate(prompts)}
    answers = await asyncio.gather(*(said(client, *each) for each in asked.values()))
    return dict(zip(asked, answers, strict=True))


@pytest.fixture(scope="module")
def expected(model_path: Path, prompts: list[list[int]]) -> dict[tuple[str, int], Said]:
    async def ask() -> dict[tuple[str, int], Said]:
        async with ForerunClient(system.state.router_grpc) as client:
            return await everything(client, prompts)

    with BackgroundSystem(config(model_path, 1, run_ahead=True)) as system:
        return asyncio.run(ask())


@pytest.fixture(scope="module", params=["two stages", "three stages", *(["trained"] if TRAINED.exists() else [])])
def speculating(
    request: pytest.FixtureRequest, model_path: Path, tmp_path_factory: pytest.TempPathFactory, expected: Any
) -> BackgroundSystem:
    """After the baseline, so that the two never share the cores."""
    layers = {"two stages": [12, 18], "three stages": [10, 10, 10], "trained": [15, 15]}[request.param]
    adapter = TRAINED
    if request.param != "trained":
        adapter = write_random_adapter(tmp_path_factory.mktemp("adapter"), model_path, layers[0])
    speculation = {
        "draft_adapter": str(adapter),
        "mode": "always",
        "drop_fraction": 0.25 if request.param == "trained" else 0.0,
    }
    # One of them with its embedding on the host, which on a CPU is the same way of computing it.
    replica = {"layer_partition": layers, "embedding": "host" if len(layers) == 3 else "device"}
    with BackgroundSystem(config(model_path, len(layers), speculation=speculation, **replica)) as system:
        yield system


@pytest.fixture
async def client(speculating: BackgroundSystem) -> AsyncIterator[ForerunClient]:
    async with ForerunClient(speculating.state.router_grpc) as connected:
        yield connected


async def test_every_kind_of_request_says_the_same(
    client: ForerunClient, prompts: list[list[int]], expected: dict[tuple[str, int], Said]
) -> None:
    answers = await everything(client, prompts)
    different = [name for name, answer in answers.items() if answer != expected[name]]
    assert different == []


async def test_a_seed_says_the_same_alone_and_in_a_crowd(client: ForerunClient, prompts: list[list[int]]) -> None:
    alone = await said(client, prompts[0], SEEDED)
    crowd = await asyncio.gather(*(said(client, prompt, SEEDED) for prompt in prompts))
    assert crowd[0] == alone
    assert alone.tokens[0] != alone.tokens[1]
    assert (await said(client, prompts[0], replace(SEEDED, seed=12))).tokens != alone.tokens


async def test_drafts_were_made_and_judged_and_nothing_is_left(speculating: BackgroundSystem) -> None:
    pages = [page for unit in speculating.state.units for _, page in unit.metrics]
    counts = scrape(pages, "forerun_sp_")
    assert counts["forerun_sp_drafted_tokens_total"] > 500
    assert 0 < counts["forerun_sp_accepted_tokens_total"] < counts["forerun_sp_drafted_tokens_total"]
    assert counts["forerun_sp_flushed_tokens_total"] > 0
    async with ForerunClient(speculating.state.router_grpc) as client:
        (replica,) = (await client.list_replicas()).replicas
    assert (replica.in_flight_requests, replica.free_blocks) == (0, replica.total_blocks)
