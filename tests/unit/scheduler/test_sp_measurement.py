"""From counters to a profile: what a known machine would show gives back that machine."""

from collections.abc import Sequence

import pytest

from services.scheduler.sp_measurement import (
    StageWindow,
    Window,
    balanced_layers,
    fit_hop,
    split_profile,
)
from services.scheduler.sp_planner import plan_split
from services.scheduler.sp_split import Split

HOP_MS = 1.5
BATCHES = (1, 2, 4, 8, 16, 32)
DRAFTS = ((25.0, 10.0), (0.0, 0.0), (25.0, 20.0))
"""Judged and right ones, by confidence."""
RIGHT_ROWS = 1 / (2 - 30 / 50)
"""Share of the rows that the last of two stages runs: it leaves out the stale ones."""

Drafts = tuple[tuple[float, float], ...]


def stage(rows: float, start_ms: float, draft_ms: float = 0.0) -> StageWindow:
    return StageWindow(rows=rows, model_ms=start_ms + 0.5 * rows, draft_ms=draft_ms)


def window(split: Split, batch: int, stages: Sequence[StageWindow], drafts: Drafts = ()) -> Window:
    """What is counted on a machine that does as the cost model says."""
    in_flight = split.steps_in_flight(batch)
    times = [each.model_ms + each.draft_ms for each in stages]
    step_ms = max(*times, (sum(times) + len(times) * HOP_MS) / in_flight)
    return Window(batch, in_flight, step_ms, 0.0, tuple(stages), drafts)


def windows_of(split: Split, start_ms: Sequence[float], draft_ms: float = 0.0) -> list[Window]:
    made = []
    for batch in BATCHES:
        rows = batch / min(batch, split.micro_batches)
        last_rows = rows * RIGHT_ROWS if split.sp > 1 else rows
        first, *others = [stage(rows, start_ms[0]), *(stage(last_rows, each) for each in start_ms[1:])]
        first = StageWindow(first.rows, first.model_ms, draft_ms)
        made.append(window(split, batch, [first, *others], drafts=DRAFTS if split.sp > 1 else ()))
    return made


@pytest.mark.parametrize(
    ("split", "start_ms", "draft_ms"),
    [
        (Split(tp=2), [20.0], 0.0),
        (Split(pp=2, layers=(15, 15)), [12.0, 16.0], 0.0),
        (Split(pp=2, layers=(15, 15), micro_batching=False), [12.0, 16.0], 0.0),
        (Split(sp=2, layers=(15, 15)), [12.0, 16.0], 4.0),
    ],
    ids=str,
)
def test_the_plan_from_a_measured_profile_is_what_was_measured(
    split: Split, start_ms: list[float], draft_ms: float
) -> None:
    windows = windows_of(split, start_ms, draft_ms)
    profile = split_profile(split, windows, kv_sequences=64)
    assert profile.hop_ms == pytest.approx(HOP_MS, abs=0.001)
    assert profile.name == str(split)
    for measured in windows[1:]:
        predicted = plan_split(profile, measured.batch, drop=0.0).prediction
        assert predicted.step_ms == pytest.approx(measured.step_ms, rel=1e-3), measured.batch
    if split.sp > 1:
        # 300 drafts of all windows in six shares of 50.
        assert profile.acceptance == pytest.approx((0.4,) * 3 + (0.8,) * 3)
        assert profile.draft is not None and profile.draft.at(8) == draft_ms


def test_a_pipeline_that_one_sequence_does_not_fill_says_nothing_of_its_stages() -> None:
    split = Split(pp=2)
    alone = window(split, 1, [stage(1, 1.0), stage(1, 1.0)])
    full = [window(split, 2 * rows, [stage(rows, 12.0), stage(rows, 16.0)]) for rows in (1, 4)]
    profile = split_profile(split, [alone, *full], kv_sequences=8)
    assert [latency.at(1) for latency in profile.stages] == [12.5, 16.5]


def test_repeated_windows_count_by_their_median_and_equal_rows_as_one_point() -> None:
    split = Split(tp=2)
    windows = [window(split, 4, [StageWindow(4.0, ms, 0.0)]) for ms in (20.0, 90.0, 22.0)]
    windows += [window(split, 1, [StageWindow(rows, 15.0, 0.0)]) for rows in (1.0, 1.02)]
    (latency,) = split_profile(split, windows, kv_sequences=8).stages
    assert latency.rows == (1.0, 4.0)
    assert latency.ms == (15.0, 22.0)


def test_a_busy_pipeline_only_bounds_the_hop() -> None:
    split = Split(sp=2)
    uneven, even = [stage(1, 10.0), stage(1, 30.0)], [stage(1, 20.0), stage(1, 20.0)]
    assert window(split, 1, uneven).largest_hop_ms > 5 * HOP_MS
    assert fit_hop([window(split, 1, uneven)] * 2 + [window(split, 1, even)]) == pytest.approx(HOP_MS)
    # One that was slower than all that is known explains: no hop is below 0, and an odd window does not sway the rest.
    quick = Window(1, 1, 10.0, 0.0, (stage(1, 12.0),))
    assert fit_hop([quick]) == 0.0
    assert fit_hop([quick, *[window(split, 1, even)] * 3]) == pytest.approx(HOP_MS)


@pytest.mark.parametrize(
    ("layers", "stage_ms", "balanced"),
    [
        ((15, 15), [15.0, 19.0], (17, 13)),
        ((15, 15), [15.0, 15.0], (15, 15)),
        ((15, 15), [18.0, 15.0], (15, 15)),
        ((10, 10, 10), [10.0, 10.0, 16.0], (12, 12, 6)),
        ((2, 2), [1.0, 50.0], (3, 1)),
    ],
)
def test_balanced_layers_make_up_for_the_head(
    layers: tuple[int, ...], stage_ms: list[float], balanced: tuple[int, ...]
) -> None:
    assert balanced_layers(layers, stage_ms) == balanced


def test_too_little_to_make_a_profile_of_is_said() -> None:
    with pytest.raises(ValueError, match="two or more numbers of rows"):
        split_profile(Split(tp=2), [window(Split(tp=2), 4, [stage(4, 20.0)])], kv_sequences=8)
    idle = [window(Split(sp=2), batch, [stage(batch, 20.0)] * 2, drafts=((0.0, 0.0),)) for batch in (1, 4)]
    with pytest.raises(ValueError, match="no draft ran ahead"):
        split_profile(Split(sp=2), idle, kv_sequences=8)
