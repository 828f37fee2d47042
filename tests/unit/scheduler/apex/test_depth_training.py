"""From block records to a model that is better than averages where hazards depend on what can be seen."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from services.cli.train import command
from services.common.errors import ConfigError
from services.common.expert import DEPTHS, Expert
from services.common.expert_profiles import PROFILES
from services.scheduler.apex.averages_policy import AveragesPolicy
from services.scheduler.apex.block import Choice, Why
from services.scheduler.apex.block_table import BlockRow, BlockTable, read_blocks, write_blocks
from services.scheduler.apex.chooser import Chooser
from services.scheduler.apex.depth_net import DepthNet, load_depth_net
from services.scheduler.apex.depth_net_config import DepthNetConfig
from services.scheduler.apex.features import EXPERT_ROWS, FEATURES
from services.scheduler.apex.learned_policy import LearnedPolicy
from services.scheduler.apex.options import Pins
from services.scheduler.apex.policy import Policy
from services.scheduler.apex.survival import censored_loss
from services.scheduler.apex.training.ablation import Ablation
from services.scheduler.apex.training.depth_training import train_depth_model
from services.scheduler.apex.training.examples import Examples, split, usable
from services.scheduler.apex.training.labels import labels_of
from services.scheduler.apex.training.losses import ranking_loss, survival_loss
from services.scheduler.apex.training.torch_net import TorchDepthNet
from services.scheduler.apex.training.trainer import TrainOptions, train
from tests.support.apex_world import World, WorldRequest

OPTIONS = TrainOptions(epochs=10, patience=4, width=24, depth_width=12, learning_rate=5e-3, batch=64)


class Listener:
    """Hears nothing."""

    def step(self, name: str, total: int | None = None) -> None: ...

    def reach(self, done: int, note: str) -> None: ...


def changing_world(seed: int) -> World:
    """The n-gram expert's drafts live long behind a longer match and die behind a shorter one, and rows are dear."""
    world = World(lambda expert, _: 0.35, neural=Expert.EAGLE3, rng=np.random.default_rng(seed))
    world.hazards = lambda expert, _: (0.03 if world.ngram_match == 4 else 0.9) if expert is Expert.NGRAM else 0.35
    world.verify_s = lambda rows: 0.004 + 0.0015 * rows
    return world


def turn(world: World, step: int) -> None:
    """Matches of 3 and of 4 tokens, which averages count together."""
    world.ngram_match = 3 + int(world.rng.integers(0, 2))


@pytest.fixture(scope="module", name="rows")
def rows_fixture() -> list[BlockRow]:
    """Whole requests with fixed experts and depths, as they are recorded to train on."""
    rows = []
    for prompt in range(18):
        for expert in (Expert.PLAIN, Expert.NGRAM, Expert.EAGLE3):
            for depth in (0,) if expert is Expert.PLAIN else (2, 4, 8, 16):
                rows += recorded(prompt, expert, depth)
    return rows


def recorded(prompt: int, expert: Expert, depth: int) -> list[BlockRow]:
    world, rows = changing_world(prompt), []
    request = world.request()
    for index in range(12):
        turn(world, index)
        features = request.history.features(expert, world.ngram_match, 16)
        choice = Choice(expert, depth, Why.PINNED, ngram_match=world.ngram_match)
        (block,) = world.verify(Silent(), [request], [choice])
        rows.append(
            BlockRow(
                f"{prompt}-{expert}-{depth}", f"p{prompt}", "synthetic", "held_out" if prompt % 6 == 0 else "train",
                expert, depth, block.drafted, block.accepted, block.emitted, index, 1, block.rows,
                block.draft_s, block.verify_s, features,
            )
        )  # fmt: skip
    return rows


class Silent:
    """Not asked, and learns nothing."""

    def choose(self, candidates: object) -> list[Choice]:
        raise NotImplementedError

    def observe(self, blocks: object) -> None: ...


@pytest.fixture(scope="module", name="model")
def model_fixture(rows: list[BlockRow], tmp_path_factory: pytest.TempPathFactory) -> Path:
    traces, out = tmp_path_factory.mktemp("traces"), tmp_path_factory.mktemp("model")
    half = len(rows) // 2
    write_blocks(traces / "a.parquet", rows[:half])
    write_blocks(traces / "b.parquet", rows[half:])
    train_depth_model(traces, out, "speed", OPTIONS, "forerun train depth …", Listener())
    return out


def test_records_come_back_as_they_were_written(rows: list[BlockRow], tmp_path: Path) -> None:
    write_blocks(tmp_path / "blocks.parquet", rows[:30])
    read, written = read_blocks(tmp_path), BlockTable.of(rows[:30])
    assert read.request_id.tolist() == written.request_id.tolist()
    assert read.verify_s.tolist() == written.verify_s.tolist()
    assert np.array_equal(read.features, written.features)


def test_other_files_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds no"):
        read_blocks(tmp_path)
    (tmp_path / "broken.parquet").write_bytes(b"no")
    with pytest.raises(ConfigError, match=r"broken\.parquet: cannot be read"):
        read_blocks(tmp_path)


def test_the_model_is_calibrated_and_better_than_constant_hazards(model: Path) -> None:
    report = json.loads((model / "report.json").read_text())
    assert report["survival_loss"] < 0.85 * report["baseline_survival_loss"]
    for each in report["calibration"]:
        assert each["expected"] == pytest.approx(each["observed"], rel=0.4, abs=0.8)
    made = json.loads((model / "provenance.json").read_text())
    assert set(made["traces"]) == {"a.parquet", "b.parquet"}
    assert "forerun train depth …" in (model / "README.md").read_text()
    assert load_depth_net(model).config.trained_on == (Expert.PLAIN, Expert.NGRAM, Expert.EAGLE3)


def speed(policy: Policy, steps: int) -> float:
    world = changing_world(999)
    live: list[WorldRequest] = [world.request() for _ in range(2)]
    for step in range(steps):
        if step == steps // 3:
            world.tokens, world.seconds = 0.0, 0.0
        turn(world, step)
        world.step(policy, live)
    return world.tokens / world.seconds


def test_it_serves_faster_than_averages_where_hazards_can_be_foreseen(model: Path) -> None:
    chooser = Chooser("speed", 0.0)
    averages = AveragesPolicy(Expert.EAGLE3, chooser, Pins())
    learned = LearnedPolicy(load_depth_net(model), averages, chooser, Expert.EAGLE3, Pins())
    plain = AveragesPolicy(Expert.EAGLE3, Chooser("speed", 0.0), Pins())
    assert speed(learned, 240) > 1.1 * speed(plain, 240)
    assert learned.failures == 0


def test_torch_and_numpy_are_the_same_model() -> None:
    torch.manual_seed(0)
    net, rng = TorchDepthNet(16, 8, ("entropy",)), np.random.default_rng(0)
    features = torch.from_numpy(rng.normal(1, 3, (40, len(FEATURES))).astype("f4"))
    net.standardise(features, torch.from_numpy(rng.normal(-3, 2, (40, 3)).astype("f4")))
    config = DepthNetConfig(trained_on=EXPERT_ROWS, width=16, depth_width=8, profile="speed")
    served = DepthNet(config, net.tensors())
    experts = np.arange(len(EXPERT_ROWS))
    encoded = served.encode(np.repeat(features.numpy()[:, None], len(experts), axis=1), experts)
    outcomes = served.outcomes(encoded, slice(None))
    for expert in experts.tolist():
        for depth in range(len(DEPTHS)):
            logits, standard = net(features, torch.full((40,), expert), torch.full((40,), depth))
            predicted = (standard * net.outcome_scale + net.outcome_mean).detach().numpy()
            assert served.hazard_logits(encoded)[:, expert] == pytest.approx(logits.detach().numpy(), abs=1e-5)
            assert outcomes.log_cost[:, expert, depth] == pytest.approx(predicted[:, 0], abs=1e-5)
            assert outcomes.log_throughput[:, expert, depth] == pytest.approx(predicted[:, 1], abs=1e-5)
            assert outcomes.utility[:, expert, depth] == pytest.approx(predicted[:, 2], abs=1e-5)


def test_the_same_seed_gives_the_same_weights_and_an_ablation_others(rows: list[BlockRow]) -> None:
    parts = split(usable(BlockTable.of(rows)))
    learnt, validation, _ = (Examples.of(each, PROFILES["balanced"]) for each in parts)
    options = replace(OPTIONS, epochs=2)

    def weights(options: TrainOptions) -> Callable[[str], np.ndarray]:
        return train(learnt, validation, options, lambda _epoch, _loss: None)[0].tensors().__getitem__

    first, again = weights(options), weights(options)
    assert np.array_equal(first("hidden.weight"), again("hidden.weight"))
    blind = weights(replace(options, ablations=(Ablation.VERIFIER, Ablation.SURVIVAL)))
    assert not blind("input.weight")[:, FEATURES.index("share_slow")].any()
    assert blind("input.weight")[:, FEATURES.index("entropy")].any()


def test_training_stops_when_validation_gets_no_better(rows: list[BlockRow]) -> None:
    parts = split(usable(BlockTable.of(rows)))
    learnt, validation, _ = (Examples.of(each, PROFILES["speed"]) for each in parts)
    _, course = train(learnt, validation, replace(OPTIONS, epochs=40, patience=1, learning_rate=0.1), lambda *_: None)
    assert course.epochs < 40
    assert course.best_epoch == course.epochs - 1


def test_losses_are_those_of_the_formulas() -> None:
    rng = np.random.default_rng(0)
    logits, drafted = rng.normal(size=(9, 16)), np.arange(9)
    accepted = np.minimum(drafted, rng.integers(0, 9, 9))
    by_hand = censored_loss(logits, accepted, drafted).sum() / 8
    loss = survival_loss(torch.from_numpy(logits), torch.from_numpy(accepted), torch.from_numpy(drafted))
    assert float(loss) == pytest.approx(by_hand)
    scores, utilities = torch.tensor([1.0, 2.0, 0.5, 7.0]), torch.tensor([3.0, 1.0, 2.0, 0.0])
    ranked = ranking_loss(scores, utilities, torch.tensor([0, 0, 0, 1]))
    assert float(ranked) == pytest.approx(np.log(np.exp([1.0, 2.0, 0.5]).sum()) - 1.0, abs=1e-6)


def test_utility_is_that_of_the_design() -> None:
    def row(expert: Expert, depth: int, accepted: int, verify_s: float) -> BlockRow:
        features = [0.0] * len(FEATURES)
        counts = (depth, depth, accepted, accepted + 1, 0, 1, 1)
        return BlockRow(f"{expert}-{depth}", "p", "w", "train", expert, *counts, 0.0, verify_s, features)

    rows = [row(Expert.NGRAM, 4, 1, 0.01), row(Expert.NGRAM, 2, 2, 0.01), row(Expert.EAGLE3, 4, 4, 0.01)]
    labels = labels_of(BlockTable.of(rows), PROFILES["balanced"])
    expected = np.log(200) + 0.30 * np.log(1.1) - 0.35 * 0.75 - 0.15 * (1 - 200 / 500) - 0.20 * (1 - 200 / 300)
    assert labels.utility[0] == pytest.approx(expected)


def test_plain_blocks_count_for_the_expert_that_found_nothing() -> None:
    def row(request: str, expert: Expert, depth: int, emitted: int) -> BlockRow:
        counts = (depth, depth, emitted - 1, emitted, 0, 1, 1)
        return BlockRow(request, "p", "w", "train", expert, *counts, 0.0, 0.01, [0.0] * len(FEATURES))

    rows = [
        row("looked up", Expert.NGRAM, 4, 5),
        row("looked up", Expert.PLAIN, 0, 1),  # no match: the n-gram expert's answers come at 300 tokens a second
        row("drafted", Expert.EAGLE3, 4, 4),
    ]
    speed = PROFILES["speed"]
    labels = labels_of(BlockTable.of(rows), speed)
    best, of_ngram = 400, 300
    expected = np.log(100) + speed.accepted * np.log(0.1)
    expected -= speed.regret * (1 - 100 / best) + speed.expert_regret * (1 - 100 / of_ngram)
    assert labels.utility[1] == pytest.approx(expected)


def test_the_command_trains_and_says_what_is_wrong(rows: list[BlockRow], tmp_path: Path) -> None:
    runner, out = CliRunner(), tmp_path / "model"
    refused = runner.invoke(command, ["depth", "--traces", str(tmp_path), "--out", str(out)])
    assert refused.exit_code == 2
    assert "holds no *.parquet" in refused.output
    write_blocks(tmp_path / "blocks.parquet", rows)
    arguments = ["depth", "--traces", str(tmp_path), "--out", str(out), "--epochs", "1", "--without", "text"]
    made = runner.invoke(command, arguments)
    assert made.exit_code == 0, made.output
    assert load_depth_net(out).config.ablations == ("text",)
