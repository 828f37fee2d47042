"""Synthetic devices take the time that their profile says, and mistakes in their configuration are named."""

import time
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError

from services.workers.config import StageConfig
from services.workers.synthetic_config import SyntheticConfig
from services.workers.synthetic_device import SyntheticDevice

STEP = {"rows": [10, 20], "ms": [30.0, 50.0]}
DRAFT = {"rows": [10, 20], "ms": [5.0, 15.0]}


def taken_ms(call: Callable[[int, float], None], rows: int, spent_ms: float = 0.0) -> float:
    began = time.perf_counter()
    call(rows, began - spent_ms / 1000)
    return 1000 * (time.perf_counter() - began)


@pytest.mark.parametrize(
    ("rows", "milliseconds"),
    [(1, 30), (10, 30), (15, 40), (20, 50), (30, 70)],
    ids=["fewer than profiled", "first point", "between", "last point", "more than profiled"],
)
def test_a_step_lasts_as_long_as_the_line_between_its_points_says(rows: int, milliseconds: float) -> None:
    device = SyntheticDevice(SyntheticConfig(step=STEP), drafts=False)
    assert milliseconds <= taken_ms(device.compute, rows) < milliseconds + 20


def test_drafting_is_part_of_a_step_on_the_stage_that_drafts_alone() -> None:
    config = SyntheticConfig(step=STEP, draft=DRAFT)
    drafting, following = SyntheticDevice(config, drafts=True), SyntheticDevice(config, drafts=False)
    assert 40 <= taken_ms(drafting.compute, 15) + taken_ms(drafting.draft, 15) < 70
    assert 30 <= taken_ms(drafting.compute, 15) < 40
    assert taken_ms(following.compute, 15) >= 40
    assert taken_ms(following.draft, 15) < 5


def test_what_the_host_does_meanwhile_costs_nothing_on_top() -> None:
    device = SyntheticDevice(SyntheticConfig(step=STEP), drafts=False)
    assert taken_ms(device.compute, 15, spent_ms=35) < 15
    assert taken_ms(device.compute, 15, spent_ms=60) < 5


@pytest.mark.parametrize(
    ("section", "field"),
    [
        ({}, "step"),
        ({"step": {"rows": [10, 5], "ms": [1.0, 2.0]}}, "rows must rise"),
        ({"step": {"rows": [1, 2], "ms": [1.0]}}, "2 rows but 1 ms"),
        ({"step": {"rows": [1], "ms": [1.0]}}, "step.rows"),
        ({"step": STEP, "acceptance": [0.5, 1.5]}, "acceptance.1"),
        ({"step": STEP, "seed": -1}, "seed"),
        ({"step": STEP, "speed": 2}, "speed"),
    ],
)
def test_mistakes_are_named(section: dict[str, Any], field: str) -> None:
    with pytest.raises(ValidationError) as refused:
        StageConfig.model_validate({"synthetic": section})
    assert field in str(refused.value)


def test_stages_compute_with_the_model_unless_told_otherwise() -> None:
    assert StageConfig().synthetic is None
