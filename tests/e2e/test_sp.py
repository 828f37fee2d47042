"""Speculative parallelism with real stages: whatever is asked for, the answer is the one without speculation.

One stage, which runs ahead on its own samples, is the baseline (that one stage says what plain vLLM says is what
``python -m benchmarks.equality`` measures). The real model speculates with two stages and its trained adapter; a tiny
model of random weights does with an untrained one, with four stages and with two of two tensor-parallel ranks each.
"""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from benchmarks.forerun_run import scrape
from benchmarks.random_adapter import write_random_adapter
from services.cli.background import BackgroundSystem
from services.cli.scrape_targets import TARGETS_FILE
from services.cli.units import UnitKind
from services.client.client import ForerunClient
from tests.e2e.asking import (
    KINDS,
    SEEDED,
    Answers,
    Model,
    everything,
    real_model,
    said,
    tiny_model,
)
from tests.support.monitoring import finds_nothing, queries, series_of
from tests.support.small_predictor import write_predictor_for

pytestmark = pytest.mark.timeout(600)

ADAPTER = Path(__file__).parents[2] / "models" / "smollm2-135m" / "adapter-15"


@dataclass(frozen=True)
class Case:
    """Who speculates, and how."""

    model: str
    layers: list[int]
    exit_layer: int = 0
    """Of an untrained adapter."""
    ranks: int = 1
    drop_fraction: float = 0.0
    embedding: str = "device"
    predictor_layer: int = 15
    """Whose states an untrained predictor of remaining lengths reads."""
    max_delay_s: float = 0.0
    """For which waiting requests may be held back; where they are not, those that run are preempted."""


CASES = {
    # Two layers behind the exit: the last stage carries the LM head.
    "two stages": Case("real", [17, 13], drop_fraction=0.25, max_delay_s=60.0),
    "four stages": Case("tiny", [3, 2, 2, 1], exit_layer=2, drop_fraction=0.25, predictor_layer=6),
    # On a CPU an embedding on the host is the same way of computing it.
    "two stages of two ranks": Case("tiny", [4, 4], exit_layer=4, ranks=2, embedding="host", predictor_layer=8),
}
"""Those of one model in a row: each model's baseline runs once."""


def drafts(system: BackgroundSystem) -> dict[str, float]:
    """Counted so far."""
    return scrape(pages(system), "forerun_sp_")


def counted(system: BackgroundSystem, name: str) -> float:
    """Over all processes and labels."""
    return sum(scrape(pages(system), name).values())


def pages(system: BackgroundSystem) -> list[str]:
    """Of all processes but the predictor, which a test kills."""
    units = [unit for unit in system.state.units if unit.kind is not UnitKind.PREDICTOR]
    return [page for unit in units for _, page in unit.metrics]


@pytest.fixture(scope="module")
def models(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Model]:
    return {"real": real_model(model_path), "tiny": tiny_model(tmp_path_factory.mktemp("tiny"))}


@pytest.fixture(scope="module")
def baselines() -> dict[str, Answers]:
    """By model, as far as they have been asked for."""
    return {}


@pytest.fixture(scope="module", params=list(CASES))
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


@pytest.fixture(scope="module")
def model(case: Case, models: dict[str, Model]) -> Model:
    return models[case.model]


@pytest.fixture(scope="module")
def expected(case: Case, model: Model, baselines: dict[str, Answers]) -> Answers:
    async def ask() -> Answers:
        async with ForerunClient(system.state.router_grpc) as client:
            return await everything(client, model)

    if case.model not in baselines:
        with BackgroundSystem(model.config(1, run_ahead=True)) as system:
            baselines[case.model] = asyncio.run(ask())
        # A model that repeats itself whatever stands before would hide wrong keys and values.
        greedy = [answer.tokens[0] for (kind, _), answer in baselines[case.model].items() if kind == "greedy"]
        assert min(len(set(tokens)) for tokens in greedy) > 2
    return baselines[case.model]


@pytest.fixture(scope="module")
def speculating(
    case: Case, model: Model, tmp_path_factory: pytest.TempPathFactory, expected: Answers
) -> Iterator[BackgroundSystem]:
    """After the baseline, so that the two never share the cores."""
    adapter = ADAPTER
    if case.model == "tiny":
        adapter = write_random_adapter(tmp_path_factory.mktemp("adapter"), model.path, case.exit_layer)
    predictor = write_predictor_for(tmp_path_factory.mktemp("predictor"), model.path, case.predictor_layer)
    config = model.config(
        len(case.layers),
        layer_partition=case.layers,
        tensor_parallel=case.ranks,
        embedding=case.embedding,
        admission={"policy": "lookahead", "max_delay_s": case.max_delay_s},
        speculation={"draft_adapter": str(adapter), "mode": "always", "drop_fraction": case.drop_fraction},
    )
    with BackgroundSystem({**config, "predictor": {"models": [str(predictor)]}}) as system:
        yield system


@pytest.fixture
async def client(speculating: BackgroundSystem) -> AsyncIterator[ForerunClient]:
    async with ForerunClient(speculating.state.router_grpc) as connected:
        yield connected


async def test_every_kind_of_request_says_the_same(client: ForerunClient, model: Model, expected: Answers) -> None:
    answers = await everything(client, model)
    different = [name for name, answer in answers.items() if answer != expected[name]]
    assert different == []


async def test_a_seed_says_the_same_alone_and_in_a_crowd(client: ForerunClient, model: Model) -> None:
    alone = await said(client, model.prompts[0], SEEDED)
    crowd = await asyncio.gather(*(said(client, prompt, SEEDED) for prompt in model.prompts))
    assert crowd[0] == alone
    assert alone.tokens[0] != alone.tokens[1]
    assert (await said(client, model.prompts[0], replace(SEEDED, seed=12))).tokens != alone.tokens


async def test_structured_output_speculates_where_its_mask_can_wait(
    client: ForerunClient, case: Case, speculating: BackgroundSystem, model: Model
) -> None:
    before = drafts(speculating)
    await said(client, model.prompts[0], KINDS["regex"])
    speculated = drafts(speculating)["forerun_sp_drafted_tokens_total"] > before["forerun_sp_drafted_tokens_total"]
    assert speculated == (len(case.layers) == 2)


async def test_every_query_of_dashboards_and_alerts_finds_its_series(
    client: ForerunClient, speculating: BackgroundSystem, model: Model
) -> None:
    await asyncio.gather(*(said(client, prompt, KINDS["greedy"]) for prompt in model.prompts))
    series = series_of(json.loads((speculating.run_dir / TARGETS_FILE).read_text()))
    assert {
        where: missing
        for where, query in queries()
        if not where.startswith("experts:") and (missing := finds_nothing(query, series))
    } == {}


async def test_drafts_were_made_and_judged_and_nothing_is_left(speculating: BackgroundSystem) -> None:
    counts = drafts(speculating)
    assert counts["forerun_sp_drafted_tokens_total"] > 100
    assert 0 < counts["forerun_sp_accepted_tokens_total"] < counts["forerun_sp_drafted_tokens_total"]
    assert counts["forerun_sp_flushed_tokens_total"] > 0
    async with ForerunClient(speculating.state.router_grpc) as client:
        (replica,) = (await client.list_replicas()).replicas
    assert (replica.in_flight_requests, replica.free_blocks) == (0, replica.total_blocks)


async def test_lengths_are_predicted_and_a_dead_predictor_costs_nothing(
    client: ForerunClient, speculating: BackgroundSystem, model: Model, expected: Answers
) -> None:
    await asyncio.gather(*(said(client, prompt, KINDS["greedy"]) for prompt in model.prompts))
    assert counted(speculating, "forerun_admission_predictions_total") > 0
    os.kill(speculating.unit("predictor").pid, signal.SIGKILL)
    before = counted(speculating, "forerun_admission_predictions_total")
    again = await asyncio.gather(*(said(client, prompt, KINDS["greedy"]) for prompt in model.prompts))
    assert again == [expected["greedy", index] for index in range(len(model.prompts))]
    assert counted(speculating, "forerun_admission_predictions_total") == before
