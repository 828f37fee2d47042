"""From a grid's requests to a model that chooses better than any one action where prompts tell them apart."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from services.common.errors import ConfigError
from services.common.expert import Expert
from services.common.expert_action import PLAIN
from services.common.training.prompt import Message
from services.common.types import SamplingOptions
from services.common.workloads.prompt import WorkloadPrompt
from services.router.apex.prompt_features import prompt_features
from services.router.apex.route_net import WEIGHTS_NAME, load_route_net
from services.router.apex.training.examples import RouteExamples, actions_of, split
from services.router.apex.training.request_table import RequestRow, write_requests
from services.router.apex.training.route_training import Target, train_route_model
from services.router.apex.training.trainer import TrainOptions
from tests.support.tiny_checkpoint import write_tiny_checkpoint

OPTIONS = TrainOptions(epochs=200, patience=40, width=16, embedding_width=4)
LOVED = {"ngram": "repeat repeat repeat repeat", "eagle3": "tell me something new"}


class Listener:
    """Hears nothing."""

    def step(self, name: str, total: int | None = None) -> None: ...

    def reach(self, done: int, note: str) -> None: ...


def prompt(kind: str, number: int, part: str) -> WorkloadPrompt:
    turns = [Message("user", f"{LOVED[kind]} {number}")]
    return WorkloadPrompt.make("code", part, "test", turns, 50)  # type: ignore[arg-type]


def rows_of(one: WorkloadPrompt, kind: str) -> list[RequestRow]:
    """Plain, and each expert at two depths; the one that the prompt loves answers in half the time."""
    rows = []
    for expert, depth in (("plain", 0), ("ngram", 2), ("ngram", 8), ("eagle3", 2), ("eagle3", 8)):
        seconds = 1.1 if expert == "plain" else 0.6 if expert == kind else 1.3
        wasted = 0 if expert == "plain" else depth * 5
        asked = (f"{one.id}-{expert}-{depth}", one.id, one.workload, one.split, expert, depth, 1, 50)
        rows.append(RequestRow(*asked, 51, seconds, 0.1, wasted, 0, 10, 0))
    return rows


@pytest.fixture(scope="module", name="world")
def world_fixture() -> tuple[list[WorkloadPrompt], list[RequestRow]]:
    prompts, rows = [], []
    for part, count in (("train", 30), ("validation", 8), ("test", 8)):
        for number in range(count):
            for kind in LOVED:
                one = prompt(kind, 1000 * len(part) + number, part)
                prompts.append(one)
                rows += rows_of(one, kind)
    return prompts, rows


@pytest.fixture(scope="module", name="target")
def target_fixture(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return Target("tiny", write_tiny_checkpoint(tmp_path_factory.mktemp("target")))


def test_it_learns_which_prompt_wants_whom(
    tmp_path: Path, target: Target, world: tuple[list[WorkloadPrompt], list[RequestRow]]
) -> None:
    prompts, rows = world
    write_requests(tmp_path / "requests.parquet", rows)
    out = tmp_path / "router"
    report = train_route_model(tmp_path / "requests.parquet", target, prompts, out, OPTIONS, "make it", Listener())
    speed = report.profiles[0]
    assert report.prompts == 16
    assert speed.oracle_speedup > 1.9
    assert speed.speedup > 1.8
    assert speed.best_fixed_speedup < 1.5
    assert speed.utility_gap_closed > 0.9
    assert json.loads((out / "report.json").read_text())["prompts"] == 16
    assert json.loads((out / "provenance.json").read_text())["command"] == "make it"
    assert "| speed |" in (out / "README.md").read_text()
    first = (out / WEIGHTS_NAME).read_bytes()
    train_route_model(tmp_path / "requests.parquet", target, prompts, out, OPTIONS, "make it", Listener())
    assert (out / WEIGHTS_NAME).read_bytes() == first
    net = load_route_net(out)
    # What never changed in the grid says nothing.
    greedy, warm = (
        net.outlook(prompt_features([5, 6, 7], SamplingOptions(temperature=heat), 50, net.embedding))
        for heat in (0.0, 1.5)
    )
    assert np.array_equal(greedy.speedup, warm.speedup)
    assert greedy.speedup[0] == 1.0


def test_examples_are_speedups_over_plain(world: tuple[list[WorkloadPrompt], list[RequestRow]]) -> None:
    rows = rows_of(world[0][0], "ngram")
    actions = actions_of(rows)
    assert actions[0] == PLAIN
    examples = RouteExamples.of([*rows, replace(rows[1], seconds=1.1)], actions)
    assert np.allclose(np.exp(examples.outcomes[0, :, 0]), [1.0, 2 / 1.5, 2.0, 1 / 1.2, 1 / 1.2])
    assert np.allclose(examples.outcomes[0, :, 1], [0.0, 10 / 51, 40 / 51, 10 / 51, 40 / 51])
    without_plain = RouteExamples.of(rows[1:], actions)
    assert len(without_plain) == 0
    assert not RouteExamples.of(rows[:2], actions).known[0, 2:].any()


def test_parts_are_by_prompt(world: tuple[list[WorkloadPrompt], list[RequestRow]]) -> None:
    _, rows = world
    train, validation, judged = split(rows)
    assert ({row.split for row in train}, {row.split for row in judged}) == ({"train"}, {"test"})
    alone = [row for row in rows if row.split == "train"]
    train, validation, judged = split(alone)
    assert judged == validation
    assert not {row.prompt_id for row in train} & {row.prompt_id for row in validation}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "record it"),
        ("plain", "plain requests and others"),
        ("drafts", "plain requests and others"),
        ("one", "too few prompts"),
    ],
)
def test_a_grid_that_cannot_be_learnt_from(
    tmp_path: Path,
    target: Target,
    world: tuple[list[WorkloadPrompt], list[RequestRow]],
    rows: Sequence[RequestRow] | str,
    message: str,
) -> None:
    prompts, all_rows = world
    if rows == "one":
        rows = rows_of(prompts[0], "ngram")
    elif isinstance(rows, str):
        rows = [row for row in all_rows if (row.expert == Expert.PLAIN) == (rows == "plain")]
    write_requests(tmp_path / "requests.parquet", rows)
    with pytest.raises(ConfigError, match=message):
        train_route_model(tmp_path / "requests.parquet", target, prompts, tmp_path, OPTIONS, "", Listener())


def test_prompts_that_are_gone_are_named(
    tmp_path: Path, target: Target, world: tuple[list[WorkloadPrompt], list[RequestRow]]
) -> None:
    prompts, rows = world
    write_requests(tmp_path / "requests.parquet", rows)
    with pytest.raises(ConfigError, match="have no more"):
        train_route_model(tmp_path / "requests.parquet", target, prompts[1:], tmp_path, OPTIONS, "", Listener())


@pytest.mark.parametrize("damage", ["missing", "cut", "width", "actions"])
def test_a_damaged_model_is_refused_with_its_file(
    tmp_path: Path, target: Target, world: tuple[list[WorkloadPrompt], list[RequestRow]], damage: str
) -> None:
    prompts, rows = world
    write_requests(tmp_path / "requests.parquet", rows)
    out = tmp_path / "router"
    options = replace(OPTIONS, epochs=1)
    train_route_model(tmp_path / "requests.parquet", target, prompts, out, options, "", Listener())
    config = (out / "config.json").read_text()
    if damage == "missing":
        shutil.rmtree(out)
    elif damage == "cut":
        (out / WEIGHTS_NAME).write_bytes((out / WEIGHTS_NAME).read_bytes()[:-100])
    elif damage == "width":
        (out / "config.json").write_text(config.replace('"width": 16', '"width": 17'))
    else:
        (out / "config.json").write_text(config.replace('"depth": 0', '"depth": 1'))
    with pytest.raises(ConfigError, match=r"forerun train router"):
        load_route_net(out)
