"""A depth model chooses, is corrected by what happens, and is left aside where it fails."""

from pathlib import Path

import numpy as np
import pytest

from services.common.errors import ConfigError
from services.common.expert import Expert
from services.scheduler.apex.averages_policy import AveragesPolicy
from services.scheduler.apex.block import Why
from services.scheduler.apex.chooser import Chooser
from services.scheduler.apex.depth_net import DepthNet, Floats, load_depth_net, save_depth_net, weight_shapes
from services.scheduler.apex.depth_net_config import DepthNetConfig
from services.scheduler.apex.features import EXPERT_ROWS
from services.scheduler.apex.fixed_policy import FixedPolicy
from services.scheduler.apex.learned_policy import LearnedPolicy
from services.scheduler.apex.options import Pins
from services.scheduler.apex.policies import make_policy
from services.scheduler.experts_config import ExpertsConfig, NeuralDrafterConfig
from tests.support.apex_world import World

CONFIG = DepthNetConfig(trained_on=EXPERT_ROWS, width=8, depth_width=4, profile="speed")
DRAFTER = NeuralDrafterConfig(kind=Expert.EAGLE3, model="m")


def make_tensors(hazard: float = 0.5) -> dict[str, Floats]:
    """A model that says the same hazard everywhere, and the deeper, the better."""
    tensors = {name: np.zeros(shape, np.float32) for name, shape in weight_shapes(CONFIG).items()}
    for name in ("scale", "outcome_scale"):
        tensors[name] += 1
    tensors["hazard.bias"] += np.log(hazard / (1 - hazard))
    tensors["depth"][:, 0] = np.arange(9)
    tensors["outcome.weight"][2, 0] = 1
    return tensors


def make_learned(tensors: dict[str, Floats], score: str = "rate", explore: float = 0.0) -> LearnedPolicy:
    chooser = Chooser("speed", explore)
    averages = AveragesPolicy(Expert.EAGLE3, chooser, Pins())
    return LearnedPolicy(DepthNet(CONFIG, tensors), averages, chooser, Expert.EAGLE3, Pins(), score)  # type: ignore[arg-type]


def world_of(hazard: float) -> World:
    return World(lambda _expert, _request: hazard)


def test_its_hazards_decide_together_with_measured_costs() -> None:
    world = world_of(0.05)
    (choice,) = make_learned(make_tensors(0.05)).choose([world.candidate(world.request())])
    assert (choice.expert, choice.why) == (Expert.NGRAM, Why.LEARNED)
    assert choice.depth >= 8
    (timid,) = make_learned(make_tensors(0.99)).choose([world.candidate(world.request())])
    assert timid.expert is Expert.PLAIN


def test_or_its_utility_alone_decides() -> None:
    world = world_of(0.99)
    (choice,) = make_learned(make_tensors(0.99), "utility").choose([world.candidate(world.request())])
    assert (choice.depth, choice.why) == (16, Why.LEARNED)
    world.ngram_found, world.neural = 3, None
    (cut,) = make_learned(make_tensors(0.99), "utility").choose([world.candidate(world.request())])
    assert (cut.expert, cut.depth) == (Expert.NGRAM, 3)


def test_wrong_odds_are_corrected() -> None:
    world, policy = world_of(0.2), make_learned(make_tensors(0.5))
    assert policy.odds_factors == {Expert.NGRAM: 1.0, Expert.EAGLE3: 1.0}
    live = [world.request() for _ in range(4)]
    world.run(policy, live, 120)
    assert policy.odds_factors[Expert.NGRAM] == pytest.approx(0.25, rel=0.25)
    (choice,) = policy.choose([world.candidate(live[0])])
    assert choice.hazards is not None
    assert choice.hazards[:8] == pytest.approx([0.2] * 8, abs=0.05)


def test_numbers_that_are_not_finite_leave_the_step_to_averages() -> None:
    tensors = make_tensors()
    policy = make_learned(tensors)
    # As if weights had overflowed in use; a file that has such numbers is not even loaded.
    policy._net._hazard_bias[:] = np.nan
    world = world_of(0.3)
    blocks = world.step(policy, [world.request()])
    assert [each.choice.why for each in blocks] == [Why.AVERAGES]
    assert policy.failures == 1
    assert np.isfinite(list(policy.odds_factors.values())).all()


def damaged(folder: Path, kind: str) -> None:
    tensors = make_tensors()
    save_depth_net(folder, CONFIG, tensors)
    weights, config = folder / "depth.safetensors", folder / "config.json"
    if kind == "truncated":
        weights.write_bytes(weights.read_bytes()[:50])
    elif kind == "missing":
        weights.unlink()
    elif kind == "no json":
        config.write_text("{")
    elif kind == "version":
        config.write_text(config.read_text().replace('"features_version": 1', '"features_version": 2'))
    elif kind == "shape":
        config.write_text(config.read_text().replace('"width": 8', '"width": 9'))


@pytest.mark.parametrize("kind", ["truncated", "missing", "no json", "version", "shape"])
def test_a_model_that_cannot_be_used_says_why_and_averages_take_over(kind: str, tmp_path: Path) -> None:
    damaged(tmp_path, kind)
    with pytest.raises(ConfigError, match="forerun train depth"):
        load_depth_net(tmp_path)
    policy = make_policy(ExpertsConfig(drafter=DRAFTER, depth_model=tmp_path, explore=0.0))
    world = world_of(0.3)
    (choice,) = policy.choose([world.candidate(world.request())])
    assert choice.why is Why.AVERAGES


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [("hidden.bias", np.nan, "not finite"), ("scale", 0.0, "not above 0")],
)
def test_tensors_that_make_no_sense_are_refused(name: str, value: float, problem: str) -> None:
    tensors = make_tensors()
    tensors[name][0] = value
    with pytest.raises(ValueError, match=problem):
        DepthNet(CONFIG, tensors)


def test_the_configuration_decides_the_policy(tmp_path: Path) -> None:
    save_depth_net(tmp_path, CONFIG, make_tensors())
    assert isinstance(make_policy(ExpertsConfig(drafter=DRAFTER, depth_model=tmp_path)), LearnedPolicy)
    assert isinstance(make_policy(ExpertsConfig(expert=Expert.NGRAM)), AveragesPolicy)
    assert isinstance(make_policy(ExpertsConfig(expert=Expert.NGRAM, depth=4)), FixedPolicy)
    assert isinstance(make_policy(ExpertsConfig(depth=0)), FixedPolicy)


def test_a_fixed_policy_does_as_it_is_told() -> None:
    world, policy = world_of(0.5), FixedPolicy(Expert.EAGLE3, 4)
    request = world.request()

    def choose(**pins: object) -> tuple[Expert, int, Why]:
        (choice,) = policy.choose([world.candidate(request, **pins)])
        return choice.expert, choice.depth, choice.why

    assert choose() == (Expert.EAGLE3, 4, Why.PINNED)
    assert choose(depth=7) == (Expert.EAGLE3, 7, Why.PINNED)
    assert choose(expert=Expert.NGRAM) == (Expert.NGRAM, 4, Why.PINNED)
    assert choose(depth=0) == (Expert.PLAIN, 0, Why.PINNED)
    world.neural = None
    assert choose() == (Expert.PLAIN, 0, Why.NOT_POSSIBLE)
