"""Step times are learnt, robustly, and go on in a sensible shape where nothing was measured."""

import numpy as np
import pytest

from services.scheduler.apex.step_cost import DraftCost, VerifyCost, prior_s


def at(cost: VerifyCost, *rows: int) -> list[float]:
    return cost.at(np.array(rows)).tolist()


def test_before_anything_is_measured_the_prior_holds() -> None:
    assert at(VerifyCost(), 1, 64) == pytest.approx(prior_s(np.array([1, 64])).tolist())


def test_one_measurement_scales_the_prior() -> None:
    cost = VerifyCost()
    cost.observe(4, 0.5)
    assert at(cost, 4)[0] == pytest.approx(0.5)
    assert at(cost, 68)[0] == pytest.approx(0.5 * 132 / 68)


def test_bent_times_are_learnt_and_never_fall() -> None:
    cost, rng = VerifyCost(), np.random.default_rng(0)
    for _ in range(600):
        rows = int(rng.integers(1, 200))
        cost.observe(rows, (0.01 + 0.0005 * max(0, rows - 32)) * rng.lognormal(0, 0.05))
    assert at(cost, 8, 64, 160) == pytest.approx([0.01, 0.026, 0.074], rel=0.08)
    assert (np.diff(cost.at(np.arange(1, 400))) >= 0).all()


def test_a_hiccup_hardly_counts_but_a_slower_machine_does() -> None:
    cost = VerifyCost()
    for _ in range(100):
        cost.observe(8, 0.01)
    cost.observe(8, 5.0)
    assert at(cost, 8)[0] < 0.011
    for _ in range(200):
        cost.observe(8, 0.05)
    assert at(cost, 8)[0] == pytest.approx(0.05, rel=0.1)


def test_drafting_has_a_fixed_part_and_parts_by_depth_and_requests() -> None:
    cost, rng = DraftCost(), np.random.default_rng(0)
    for _ in range(200):
        depth, requests = int(rng.integers(1, 17)), int(rng.integers(1, 65))
        cost.observe(depth, requests, 0.002 + 0.003 * depth + 0.0001 * depth * requests)
    assert cost.at(32)[[0, 4, 16]] == pytest.approx([0.0, 0.002 + 0.0248, 0.002 + 0.0992], rel=0.05)


def test_one_depth_alone_leaves_the_prior_s_proportions() -> None:
    cost = DraftCost()
    for _ in range(50):
        cost.observe(4, 1, 0.04)
    seconds = cost.at(1)
    assert seconds[4] == pytest.approx(0.04, rel=0.01)
    assert 0.01 < seconds[1] < 0.02
    assert 0.1 < seconds[16] < 0.16
