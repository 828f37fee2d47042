"""Experts with a real stage: whoever drafts and however deep, the answer is the one without drafts.

A tiny model of random weights, so small that it drafts for itself: then nearly every draft is right. An EAGLE-3 head of
random weights is nearly never right. Requests that ask for different experts and depths run in one batch.
"""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from vllm.platforms import current_platform
from vllm.utils.cpu_triton_utils import _expand_kernel_impl

from benchmarks.forerun_run import scrape
from services.cli.background import BackgroundSystem
from services.cli.scrape_targets import TARGETS_FILE
from services.cli.units import UnitKind
from services.client import ForerunClient, Started
from services.common.errors import RequestEndedError
from services.common.expert import Expert
from services.common.expert_action import Action
from services.common.outcome import Outcome
from services.common.types import Finished, SamplingOptions
from services.workers.vllm_cpu_kernels import expand
from tests.e2e.asking import BLOCKS, GREEDY, Answers, Model, everything, said, tiny_model
from tests.support.monitoring import finds_nothing, queries, series_of
from tests.support.small_eagle3 import write_random_eagle3
from tests.support.small_route_net import write_route_net

pytestmark = pytest.mark.timeout(600)


@dataclass(frozen=True)
class Case:
    """Who drafts beside n-grams."""

    neural: Expert
    ranks: int = 1


CASES = {
    "draft model": Case(Expert.DRAFT_MODEL),
    "EAGLE-3 of two ranks": Case(Expert.EAGLE3, ranks=2),
}
OF_GOOD_DRAFTS = pytest.mark.parametrize("case", ["draft model"], indirect=True, scope="module")
"""For what needs drafts that are nearly always right, and for what no case changes."""


def wishes(case: Case) -> list[dict[str, Any]]:
    """What requests ask for, in turn."""
    return [
        {},
        {"expert": Expert.NGRAM, "draft_tokens": 6},
        {"expert": case.neural, "draft_tokens": 1},
        {"expert": Expert.PLAIN},
        {"expert": case.neural, "draft_tokens": 5},
        {"draft_tokens": 0},
        {"expert": case.neural, "draft_tokens": 40},
    ]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def expected(model: Model) -> Answers:
    async def ask() -> Answers:
        async with ForerunClient(system.state.router_grpc) as client:
            return await everything(client, model)

    with BackgroundSystem(model.config(1)) as system:
        return asyncio.run(ask())


@pytest.fixture(scope="module", params=list(CASES))
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


@pytest.fixture(scope="module")
def drafting(
    case: Case, model: Model, expected: Answers, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BackgroundSystem]:
    """After the baseline, so that the two never share the cores."""
    path = model.path
    if case.neural is Expert.EAGLE3:
        path = write_random_eagle3(tmp_path_factory.mktemp("eagle3"), model.path)
    drafter = {"kind": case.neural.value, "model": str(path)}
    config = model.config(
        1,
        tensor_parallel=case.ranks,
        admission={"policy": "lookahead"},
        experts={"drafter": drafter, "ngram": {"shortest_match": 1, "longest_match": 4}},
    )
    config["router"]["http_listen"] = "127.0.0.1:0"
    likes = {Action(case.neural, 2): (1.4, 0.5), Action(Expert.NGRAM, 3): (1.2, 0.1)}
    route_model = write_route_net(
        tmp_path_factory.mktemp("router"), likes, json.loads((model.path / "config.json").read_text())["vocab_size"]
    )
    # With the first block alone, so that replicas choose all others.
    config["router"]["experts"] = {"model": str(route_model), "first_block_only": True}
    with BackgroundSystem(config) as system:
        yield system


@pytest.fixture
async def client(drafting: BackgroundSystem) -> AsyncIterator[ForerunClient]:
    async with ForerunClient(drafting.state.router_grpc) as connected:
        yield connected


def counts(system: BackgroundSystem, name: str) -> float:
    """Over all experts."""
    pages = [page for unit in system.state.units for _, page in unit.metrics]
    return sum(value for key, value in scrape(pages, f"forerun_spec_{name}").items() if key.endswith("_total"))


async def test_every_kind_of_request_says_the_same(
    client: ForerunClient, case: Case, model: Model, expected: Answers
) -> None:
    asked = wishes(case)
    for turn in range(1 if case.ranks > 1 else 2):  # the second time beside other ones
        answers = await everything(
            client, model, [asked[(index + 3 * turn) % len(asked)] for index in range(len(asked))]
        )
        assert [name for name, answer in answers.items() if answer != expected[name]] == []


async def test_drafts_were_judged_and_nothing_is_left(drafting: BackgroundSystem, client: ForerunClient) -> None:
    drafted, accepted = counts(drafting, "drafted_tokens"), counts(drafting, "accepted_tokens")
    assert drafted > 100
    assert 0 < accepted < drafted
    (replica,) = (await client.list_replicas()).replicas
    assert (replica.in_flight_requests, replica.free_blocks) == (0, replica.total_blocks)


@OF_GOOD_DRAFTS
async def test_a_drafter_that_sat_out_is_right_when_it_drafts_again(
    client: ForerunClient, case: Case, drafting: BackgroundSystem, model: Model
) -> None:
    """Nothing is read while others draft; then all of it is, over the ends of KV blocks and beside other requests."""
    before = counts(drafting, "drafted_tokens"), counts(drafting, "accepted_tokens")
    plain = replace(GREEDY, max_tokens=100, expert="plain")
    neural = replace(GREEDY, max_tokens=40, expert=case.neural, draft_tokens=4)
    long = asyncio.create_task(said(client, model.prompts[0], plain))
    for prompt in model.prompts[1:4]:
        await said(client, prompt, neural)
    await long
    drafted, accepted = (
        counts(drafting, name) - then for name, then in zip(("drafted_tokens", "accepted_tokens"), before, strict=True)
    )
    assert accepted > 0.9 * drafted > 0


@OF_GOOD_DRAFTS
async def test_a_prompt_found_in_the_cache_has_been_read(
    client: ForerunClient, case: Case, drafting: BackgroundSystem, model: Model
) -> None:
    """The first request ends with its first token, when nothing has been drafted yet."""
    prompt = [7, *model.long_prompt[:200]]
    await said(client, prompt, replace(GREEDY, max_tokens=1))
    before = counts(drafting, "drafted_tokens"), counts(drafting, "accepted_tokens")
    await said(client, prompt, replace(GREEDY, max_tokens=40, expert=case.neural, draft_tokens=4))
    after = counts(drafting, "drafted_tokens"), counts(drafting, "accepted_tokens")
    drafted, accepted = (now - then for now, then in zip(after, before, strict=True))
    assert accepted > 0.8 * drafted > 0


@OF_GOOD_DRAFTS
async def test_every_query_of_the_experts_dashboard_finds_its_series(
    client: ForerunClient, drafting: BackgroundSystem, model: Model
) -> None:
    await said(client, model.prompts[0], GREEDY)
    series = series_of(json.loads((drafting.run_dir / TARGETS_FILE).read_text()))
    found = {where: finds_nothing(query, series) for where, query in queries() if where.startswith("experts:")}
    assert len(found) > 5
    assert not any(found.values()), found


async def usage_of(client: ForerunClient, prompt: list[int], sampling: SamplingOptions) -> Any:
    async for event in client.generate(tuple(prompt), sampling):
        if isinstance(event, Finished):
            return event.usage
    raise AssertionError("no end")


@OF_GOOD_DRAFTS
async def test_the_reply_tells_of_drafts(client: ForerunClient, case: Case, model: Model) -> None:
    usage = await usage_of(client, model.prompts[0], replace(GREEDY, expert=case.neural, draft_tokens=3))
    assert usage.speculation.draft_tokens >= usage.speculation.accepted_tokens > 0
    plain = await usage_of(client, model.prompts[0], replace(GREEDY, expert="plain"))
    assert plain.speculation.draft_tokens == 0


@OF_GOOD_DRAFTS
async def test_the_openai_edge_takes_the_wish_and_tells_of_drafts(
    drafting: BackgroundSystem, case: Case, model: Model
) -> None:
    body = {
        "model": drafting.state.model_names[0],
        "prompt": model.prompts[0],
        "max_tokens": 16,
        "temperature": 0,
        "vllm_xargs": {"forerun_expert": case.neural.value, "forerun_draft_tokens": 3},
    }
    async with httpx.AsyncClient(base_url=drafting.state.router_http or "", timeout=60) as http:
        reply = await http.post("/v1/completions", json=body)
        wrong = await http.post("/v1/completions", json={**body, "vllm_xargs": {"forerun_expert": "nobody"}})
    assert reply.status_code == 200, reply.text
    assert reply.json()["metrics"]["speculative_decoding"]["num_draft_tokens"] > 0
    assert reply.headers["forerun-expert"] == f"{case.neural.value};depth=3;reason=pinned"
    assert wrong.status_code == 400
    assert "expert" in wrong.text


@OF_GOOD_DRAFTS
async def test_the_router_chooses_the_first_block(drafting: BackgroundSystem, case: Case, model: Model) -> None:
    def routed() -> float:
        pages = [page for unit in drafting.state.units for _, page in unit.metrics]
        return scrape(pages, "forerun_spec_blocks_total", "why").get("forerun_spec_blocks_total{why=routed}", 0.0)

    before = routed()
    async with ForerunClient(drafting.state.router_grpc) as client:
        started, *_ = [event async for event in client.generate(tuple(model.prompts[0]), GREEDY)]
    assert isinstance(started, Started)
    assert started.expert_choice is not None
    assert (started.expert_choice.expert, started.expert_choice.first_draft_tokens) == (case.neural, 2)
    assert routed() == before + 1


@OF_GOOD_DRAFTS
async def test_min_p_is_served_beside_drafts(client: ForerunClient, case: Case, model: Model) -> None:
    """At min_p 1 only the likeliest token is left, so a temperature changes nothing."""
    certain = replace(GREEDY, temperature=1.0, min_p=1.0, expert=case.neural, draft_tokens=4)
    drafting = [said(client, prompt, replace(GREEDY, expert=case.neural)) for prompt in model.prompts[:3]]
    answers = await asyncio.gather(*drafting, *(said(client, prompt, certain) for prompt in model.prompts[:3]))
    assert [each.tokens for each in answers[:3]] == [each.tokens for each in answers[3:]]


@OF_GOOD_DRAFTS
async def test_drafts_end_with_the_context(client: ForerunClient, case: Case, model: Model) -> None:
    room = BLOCKS * model.block_size // 2
    prompt = (model.long_prompt * 2)[: room - 12]
    sampling = replace(GREEDY, max_tokens=None, expert=case.neural, draft_tokens=8)
    ends = await asyncio.gather(said(client, prompt, sampling), said(client, model.prompts[0], GREEDY))
    plain = await said(client, prompt, replace(sampling, expert="plain"))
    assert ends[0] == plain
    assert (len(plain.tokens[0]), plain.outcome) == (12, Outcome.LENGTH)


@OF_GOOD_DRAFTS
async def test_drafts_leave_the_distribution_alone(client: ForerunClient, case: Case, model: Model) -> None:
    """At a temperature, the third token is distributed as without drafts; drafts kept too often would show."""
    samples = {}
    for expert in (Expert.PLAIN, case.neural, Expert.NGRAM):
        sampling = SamplingOptions(
            temperature=0.7, max_tokens=4, n=64, seed=3, ignore_eos=True, expert=expert, draft_tokens=3
        )
        answers = [await said(client, model.prompts[1], replace(sampling, seed=64 * turn)) for turn in range(8)]
        samples[expert] = [tokens[2] for answer in answers for tokens in answer.tokens]
    for expert in (case.neural, Expert.NGRAM):
        assert chi_squared_excess(samples[Expert.PLAIN], samples[expert]) < 4, expert


@OF_GOOD_DRAFTS
async def test_a_stage_that_dies_while_it_drafts_ends_every_request(
    drafting: BackgroundSystem, case: Case, model: Model
) -> None:
    async def outcome(prompt: list[int]) -> Outcome:
        sampling = replace(GREEDY, max_tokens=400, expert=case.neural, draft_tokens=1)
        try:
            return (await said(client, prompt, sampling)).outcome
        except RequestEndedError as error:
            return error.outcome

    async with ForerunClient(drafting.state.router_grpc) as client:
        asked = [asyncio.create_task(outcome(prompt)) for prompt in model.prompts[:4]]
        await until_running(client, 4)
        os.kill(drafting.units(UnitKind.STAGE)[0].pid, signal.SIGKILL)
        killed = asyncio.get_running_loop().time()
        outcomes = await asyncio.gather(*asked)
        assert asyncio.get_running_loop().time() - killed < 10
        assert set(outcomes) <= {Outcome.REPLICA_LOST, Outcome.REJECTED_UNAVAILABLE}


async def until_running(client: ForerunClient, requests: int) -> None:
    """Waits until so many are in flight."""
    async with asyncio.timeout(60):
        while (await client.list_replicas()).replicas[0].in_flight_requests < requests:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def chi_squared_excess(one: list[int], other: list[int]) -> float:
    """By how many standard deviations two samples differ more than two of one distribution do on the average."""
    kinds = [kind for kind in set(one + other) if one.count(kind) + other.count(kind) >= 10]
    counts = np.array([[each.count(kind) for kind in kinds] for each in (one, other)], float)
    rest = [len(one) - counts[0].sum(), len(other) - counts[1].sum()]
    table = np.column_stack((counts, rest)) if sum(rest) >= 10 else counts
    expected = table.sum(1, keepdims=True) * table.sum(0, keepdims=True) / table.sum()
    freedom = table.shape[1] - 1
    return float((((table - expected) ** 2 / expected).sum() - freedom) / (2 * freedom) ** 0.5)


def test_upstream_still_drops_what_its_stand_in_computes() -> None:
    """When this fails, ``vllm_cpu_kernels.py`` has had its day."""
    current_platform.import_kernels()
    temperatures, ends = torch.tensor([0.5, 0.0]), torch.tensor([2, 3], dtype=torch.int32)
    theirs, ours = torch.full((3,), 7.0), torch.full((3,), 7.0)
    _expand_kernel_impl(theirs, temperatures, ends, 0, 1)
    assert theirs.tolist() == [7.0, 7.0, 7.0]
    expand(ours, temperatures, ends, 0, 1)
    assert ours.tolist() == [0.5, 0.5, 1.0]


def test_the_measure_tells_distributions_apart() -> None:
    random = np.random.default_rng(0)
    fair = [random.choice(8, 1500, p=[0.3, 0.2, 0.1, 0.1, 0.1, 0.1, 0.05, 0.05]).tolist() for _ in range(2)]
    skewed = random.choice(8, 1500, p=[0.36, 0.2, 0.1, 0.1, 0.1, 0.06, 0.04, 0.04]).tolist()
    assert chi_squared_excess(*fair) < 4 < chi_squared_excess(fair[0], skewed)
