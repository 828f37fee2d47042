"""Speedup, waste and their comparisons, from runs whose answer is known."""

import json
from pathlib import Path

import pytest

from benchmarks.apex.figures import calibration_error, figures_of, tables
from benchmarks.apex.measure import groups_of
from benchmarks.apex.metrics import (
    Point,
    Run,
    accepted_per_block,
    aggregate,
    best_fixed,
    oracle_speedup,
    points,
    worst_workload_ratio,
)
from benchmarks.apex.plot import draw_planes
from benchmarks.apex.settings import fixed_settings, profile_experts, profile_settings, system_config
from services.cli.local_config import LocalConfig
from services.common.training.prompt import Message
from services.common.workloads.prompt import WorkloadPrompt

SETTINGS = fixed_settings("eagle3", [4]) + profile_settings(["s", "b"], ["s"], routed=False)


def run(setting: str, workload: str, seconds: float, drafts: tuple[int, int] = (0, 0), **more: object) -> Run:
    values = {"batch": 1, "round": 0, "group": f"{workload}-0", "tokens": 100, "blocks": drafts[0] // 4} | more
    return Run(setting=setting, workload=workload, seconds=seconds, drafted=drafts[0], accepted=drafts[1], **values)  # type: ignore[arg-type]


def world(number: int = 0, batch: int = 1) -> list[Run]:
    """N-grams are good at edits, EAGLE-3 is good at chat."""
    table = {
        ("plain", "chat"): (8.0, (0, 0)),
        ("plain", "edits"): (8.0, (0, 0)),
        ("ngram-4", "chat"): (8.0, (80, 8)),
        ("ngram-4", "edits"): (1.0, (120, 72)),
        ("eagle3-4", "chat"): (4.0, (100, 50)),
        ("eagle3-4", "edits"): (4.0, (100, 50)),
        ("s", "chat"): (5.0, (60, 45)),
        ("s", "edits"): (1.0, (100, 75)),
        ("b", "chat"): (8.0, (0, 0)),
        ("b", "edits"): (2.0, (80, 72)),
        ("s_per_block", "chat"): (4.0, (60, 45)),
        ("s_per_block", "edits"): (1.0, (100, 75)),
    }
    return [
        run(setting, workload, seconds, drafts, round=number, batch=batch)
        for (setting, workload), (seconds, drafts) in table.items()
    ]


def test_points_are_paces_over_plain_and_shares_of_drafts() -> None:
    found = points(world())
    assert found["ngram-4"]["edits"] == Point(8.0, pytest.approx(0.4))
    assert found["plain"]["chat"] == Point(1.0, 0.0)
    assert found["plain"]["chat"].was is None
    assert aggregate(found["ngram-4"]) == Point(4.5, pytest.approx(0.65))
    assert aggregate(found["s"]).speedup == pytest.approx((1.6 + 8) / 2)


def test_answers_of_other_lengths_are_compared_by_pace() -> None:
    runs = [run("plain", "chat", 8.0), run("eagle3-4", "chat", 2.0, (10, 5), tokens=50)]
    assert points(runs)["eagle3-4"]["chat"].speedup == pytest.approx(2.0)


def test_was_gives_what_the_paper_reports() -> None:
    for speedup, waste, was in ((5.16, 0.44, 11.72), (3.07, 0.4059, 7.56), (3.15, 0.4812, 6.55), (6.40, 0.6625, 9.66)):
        assert Point(speedup, waste).was == pytest.approx(was, abs=0.01)


def test_the_best_fixed_setting_and_the_oracle() -> None:
    found = points(world())
    assert best_fixed(found, SETTINGS) == "ngram-4"
    assert worst_workload_ratio(found, "s", SETTINGS) == pytest.approx(1.6 / 2.0)
    assert oracle_speedup(world(), SETTINGS) == pytest.approx((2.0 + 8.0) / 2)


def test_luck_in_one_round_does_not_make_the_oracle() -> None:
    lucky = [run("eagle3-4", "chat", 0.1, (100, 50), round=2)]
    rounds = [*world(0), *world(1), *(each for each in world(2) if each.setting != "eagle3-4"), *lucky]
    assert oracle_speedup(rounds, SETTINGS) == pytest.approx((2.0 + 8.0) / 2)


def test_accepted_drafts_a_block() -> None:
    assert accepted_per_block(world(), "eagle3-4") == pytest.approx(2.0)
    assert accepted_per_block(world(), "plain") is None


def test_figures_are_by_round_and_none_is_made_up() -> None:
    figures = figures_of([*world(0), *world(1), *world(0, batch=8)], SETTINGS, None)
    assert figures["apex_s_vs_best_fixed"].median == pytest.approx(4.8 / 4.5, abs=1e-3)
    assert figures["apex_s_vs_best_fixed"].runs == 2
    assert figures["apex_s_per_block_vs_best_fixed"].median == pytest.approx(5.0 / 4.5, abs=1e-3)
    assert figures["apex_s_waste_ratio"].median == pytest.approx(0.25 / 0.65, abs=1e-3)
    assert figures["apex_b_waste_cut"].median == pytest.approx(1 - 0.05 / 0.65, abs=1e-3)
    assert figures["apex_s_worst_workload_ratio"].median == pytest.approx(0.8)
    assert figures["aggregate_speedup_b"].median == pytest.approx(2.5)
    assert figures["waste_b"].median == pytest.approx(0.05)
    assert figures["oracle_gap"].median == pytest.approx(1 - 4.8 / 5.0, abs=1e-3)
    assert figures["eagle3_accepted_k4"].median == pytest.approx(2.0)
    assert figures["aggregate_speedup_s_b8"].runs == 1
    assert not {"draft_accepted_k4", "aggregate_speedup_e", "calibration_error_max", "oracle_gap_b8"} & figures.keys()


def test_calibration_is_the_depth_models_own(tmp_path: Path) -> None:
    assert calibration_error(tmp_path) is None
    rows = [
        {"expert": "ngram", "depth": 4, "blocks": 900, "expected": 1.5, "observed": 1.2},
        {"expert": "ngram", "depth": 16, "blocks": 3, "expected": 9.0, "observed": 1.0},
    ]
    (tmp_path / "report.json").write_text(json.dumps({"calibration": rows}))
    assert calibration_error(tmp_path) == pytest.approx(0.3)


def test_the_table_and_the_plot_have_every_setting(tmp_path: Path) -> None:
    text = tables(world(), SETTINGS)
    assert "| s | 4.80 | 25.0% | 19.20 | 1.60 / 25% | 8.00 / 25% |" in text
    assert all(f"| {each.name} |" in text for each in SETTINGS)
    draw_planes(world(), SETTINGS, tmp_path / "planes.svg")
    assert "ngram-4" in (tmp_path / "planes.svg").read_text() or (tmp_path / "planes.svg").stat().st_size > 1000


def test_groups_are_the_same_prompts_for_every_setting() -> None:
    prompts = {
        name: [WorkloadPrompt.make(name, "test", "a", [Message("user", f"{name} {n}")], 8) for n in range(5)]
        for name in ("chat", "edits")
    }
    groups = groups_of(prompts, 2, 3)
    assert [group.name for group in groups] == ["chat-0", "edits-0", "chat-1", "edits-1"]
    assert groups[2].prompts == prompts["chat"][2:4]


def test_with_a_route_model_experts_that_change_have_a_system_of_their_own() -> None:
    routed = {each.name: each for each in profile_settings(["s"], ["s"], routed=True)}
    assert (routed["s"].system, routed["s"].by_workload) == ("s", False)
    assert routed["s_per_block"].system == "s_per_block"
    assert profile_experts({}, "s_per_block", None, "rate")["profile"] == "speed"


def test_every_system_is_a_valid_configuration(tmp_path: Path) -> None:
    drafting = {"drafter": {"kind": "eagle3", "model": "head"}}
    for profile in ("s", "b", "e"):
        experts = profile_experts(drafting, profile, tmp_path, "rate")
        config = system_config(tmp_path, "float32", 8, experts, {"max_model_len": 512})
        (replica,) = LocalConfig.model_validate(config).replicas
        assert replica.experts is not None
        assert replica.experts.depth_model == tmp_path
        assert replica.engine_args["max_model_len"] == 512
