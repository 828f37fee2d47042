"""The closed forms of speculative parallelism against the simulated machine, at their limits, and in general."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.common.acceptance_curve import AcceptanceCurve
from services.scheduler.sp_cost_model import (
    Speculation,
    batch_recurrence,
    choose_drop,
    effective_batch,
    predict,
    rows_per_step,
)
from services.scheduler.sp_pipeline import Latency, Pipeline, StaleRows
from services.scheduler.sp_simulation import simulate

BATCH = 64
WITHIN = 0.01
FLAT = AcceptanceCurve((0.6,))
SLOPED = AcceptanceCurve(tuple(0.30 + 0.034 * step for step in range(20)))

shares = st.floats(0.0, 1.0)
depths = st.integers(1, 8)
speculations = st.builds(Speculation, depths, shares, shares)


def linear(fixed_ms: float, ms_per_row: float) -> Latency:
    return lambda rows: fixed_ms + ms_per_row * rows


def equal_stages(count: int, micro_batches: int = 1, stale_rows: StaleRows = StaleRows.RUN) -> Pipeline:
    return Pipeline((linear(10.0, 0.0),) * count, micro_batches, stale_rows=stale_rows)


@pytest.mark.parametrize(
    ("curve", "drop"),
    [(AcceptanceCurve((0.4,)), 0.0), (AcceptanceCurve((0.8,)), 0.0), (SLOPED, 0.15), (SLOPED, 0.3)],
    ids=["p 0.4", "p 0.8", "drop 0.15", "drop 0.3"],
)
@pytest.mark.parametrize("depth", [2, 3, 4, 8])
def test_effective_batch_and_rows_are_those_of_the_machine(depth: int, curve: AcceptanceCurve, drop: float) -> None:
    pipeline, batch = equal_stages(depth), 256
    seen = simulate(pipeline, batch, curve, drop, steps=150 * depth, seed=1)
    speculation = Speculation(depth, curve.kept(drop), drop)
    assert seen.tokens_per_step == pytest.approx(effective_batch(batch, speculation), rel=WITHIN)
    assert seen.rows == pytest.approx(rows_per_step(batch, speculation, pipeline), rel=WITHIN)


@pytest.mark.parametrize("stale_rows", list(StaleRows))
@pytest.mark.parametrize(("micro_batches", "depth"), [(1, 2), (1, 4), (2, 2), (2, 3), (4, 2)])
def test_rows_by_stage_are_those_of_the_machine(micro_batches: int, depth: int, stale_rows: StaleRows) -> None:
    pipeline = equal_stages(micro_batches * depth, micro_batches, stale_rows)
    seen = simulate(pipeline, BATCH, SLOPED, 0.2, steps=800 * micro_batches, seed=2)
    predicted = predict(pipeline, BATCH, SLOPED, 0.2)
    assert seen.tokens_per_step == pytest.approx(predicted.tokens_per_step, rel=WITHIN)
    assert seen.rows == pytest.approx(predicted.rows, rel=WITHIN)


PIPELINES = {
    "TP": Pipeline((linear(8.0, 0.3),)),
    "PP 2": Pipeline((linear(10.0, 0.2), linear(12.0, 0.2)), micro_batches=2),
    "PP 4": Pipeline((linear(10.0, 0.2),) * 4, micro_batches=4, hop_ms=1.0),
    "SP 2": Pipeline((linear(13.0, 0.2), linear(12.0, 0.2))),
    "SP 2, slow way round": Pipeline((linear(3.0, 0.1), linear(3.0, 0.1)), hop_ms=9.0),
    "SP 4, last stage skips": Pipeline((linear(12.0, 0.2),) * 3 + (linear(15.0, 0.2),), stale_rows=StaleRows.SKIP_LAST),
    "PP 2, SP 2": Pipeline((linear(10.0, 0.2), linear(13.0, 0.2)) * 2, micro_batches=2),
}


@pytest.mark.parametrize("name", PIPELINES)
def test_throughput_is_that_of_the_machine(name: str) -> None:
    pipeline = PIPELINES[name]
    seen = simulate(pipeline, BATCH, FLAT, steps=600, seed=3)
    assert seen.tokens_per_s == pytest.approx(predict(pipeline, BATCH, FLAT).tokens_per_s, rel=WITHIN)


@pytest.mark.parametrize("drop", [0.1, 0.2, 0.4])
@pytest.mark.parametrize("batch", [16, 64])
@pytest.mark.parametrize("depth", [2, 4])
def test_steps_that_drop_are_uneven_and_take_as_long_as_predicted(depth: int, batch: int, drop: float) -> None:
    pipeline = Pipeline((linear(10.0, 1.0),) * depth)
    seen = simulate(pipeline, batch, SLOPED, drop, steps=24000 // batch, seed=3).tokens_per_s
    assert seen == pytest.approx(predict(pipeline, batch, SLOPED, drop).tokens_per_s, rel=0.03)


def test_the_machine_counts_what_it_drops_and_accepts() -> None:
    seen = simulate(equal_stages(2), BATCH, SLOPED, 0.25, steps=1000, seed=4)
    assert seen.dropped / seen.tokens == pytest.approx(0.25, rel=WITHIN)
    assert seen.accepted / (seen.tokens - seen.dropped) == pytest.approx(SLOPED.kept(0.25), rel=WITHIN)


@pytest.mark.parametrize("depth", [2, 3, 4, 8])
@pytest.mark.parametrize("drop", [0.0, 0.3])
def test_the_papers_recurrence_converges_to_the_closed_form(depth: int, drop: float) -> None:
    speculation = Speculation(depth, 0.7, drop)
    last = batch_recurrence(BATCH, speculation, 500)[-1]
    assert last.normal + last.accepted == pytest.approx(effective_batch(BATCH, speculation))
    rows = rows_per_step(BATCH, speculation, equal_stages(depth))[0]
    assert last.normal + last.accepted + last.rejected == pytest.approx(rows)


@given(st.integers(2, 8), shares)
def test_without_drop_the_recurrence_keeps_every_sequence_at_work(depth: int, acceptance: float) -> None:
    steps = batch_recurrence(BATCH, Speculation(depth, acceptance), 40)
    assert steps[0].normal == BATCH
    for step in steps:
        assert step.normal + step.accepted + step.rejected == pytest.approx(BATCH)


@given(depths)
def test_limits(depth: int) -> None:
    assert effective_batch(BATCH, Speculation(depth, 1.0)) == BATCH
    micro_batched = pytest.approx(BATCH / depth)
    assert effective_batch(BATCH, Speculation(depth, 0.0)) == micro_batched
    assert effective_batch(BATCH, Speculation(depth, 0.7, drop=1.0)) == micro_batched
    assert rows_per_step(BATCH, Speculation(depth, 0.7, drop=1.0), equal_stages(depth))[0] == micro_batched
    assert rows_per_step(BATCH, Speculation(depth, 0.7), equal_stages(depth))[0] == pytest.approx(BATCH)


@given(depths, shares)
def test_where_no_draft_is_wrong_rows_are_limited_as_in_the_paper(depth: int, drop: float) -> None:
    rows = rows_per_step(BATCH, Speculation(depth, 1.0, drop), equal_stages(depth))
    assert rows[0] == pytest.approx(BATCH / (1.0 + drop * (depth - 1)))


@given(depths, shares, shares, shares)
def test_better_drafts_never_advance_fewer(depth: int, worse: float, better: float, drop: float) -> None:
    worse, better = sorted((worse, better))
    slower, faster = (effective_batch(BATCH, Speculation(depth, each, drop)) for each in (worse, better))
    assert slower <= faster + 1e-9


@given(speculations)
def test_between_micro_batches_and_the_whole_batch(speculation: Speculation) -> None:
    advancing = effective_batch(BATCH, speculation)
    rows = rows_per_step(BATCH, speculation, equal_stages(speculation.depth))[0]
    assert BATCH / speculation.depth - 1e-9 <= advancing <= rows + 1e-9
    assert rows <= BATCH + 1e-9


@given(speculations)
def test_skipping_helps_later_stages_more_and_none_runs_fewer_rows_than_advance(speculation: Speculation) -> None:
    everything, last, some = (
        rows_per_step(BATCH, speculation, equal_stages(speculation.depth, stale_rows=policy))
        for policy in (StaleRows.RUN, StaleRows.SKIP_LAST, StaleRows.SKIP_ALL)
    )
    assert list(some) == sorted(some, reverse=True)
    assert some[0] == pytest.approx(everything[0])
    assert some[-1] == pytest.approx(effective_batch(BATCH, speculation))
    assert last == (*everything[:-1], some[-1])


@given(st.lists(shares, min_size=1, max_size=6).map(sorted), shares, shares)
def test_dropping_the_least_confident_lifts_acceptance_but_not_what_advances(
    rates: list[float], less: float, more: float
) -> None:
    less, more = sorted((less, more))
    curve = AcceptanceCurve(tuple(rates))
    assert curve.kept(less) <= curve.kept(more) + 1e-9
    advances = [Speculation(4, min(1.0, curve.kept(drop)), drop).advance for drop in (less, more)]
    assert advances[0] >= advances[1] - 1e-9


def test_acceptance_curve_by_hand() -> None:
    curve = AcceptanceCurve((0.2, 0.6))
    assert [curve.at(quantile) for quantile in (0.0, 0.49, 0.5, 1.0)] == [0.2, 0.2, 0.6, 0.6]
    assert [curve.kept(drop) for drop in (0.0, 0.5, 1.0)] == pytest.approx([0.4, 0.6, 0.6])
    assert curve.kept(0.25) == pytest.approx((0.25 * 0.2 + 0.5 * 0.6) / 0.75)


def test_drop_pays_only_where_rows_cost() -> None:
    memory_bound, compute_bound = (Pipeline((linear(10.0, cost),) * 2) for cost in (0.0, 1.0))
    assert choose_drop(memory_bound, BATCH, SLOPED).speculation.drop == 0.0
    assert choose_drop(compute_bound, BATCH, SLOPED).speculation.drop > 0.0


def test_one_sequence_in_a_pipeline_is_bound_by_the_way_through_it() -> None:
    alone = predict(PIPELINES["PP 2"], 1)
    assert alone.is_latency_bound
    assert alone.step_ms == pytest.approx(10.2 + 12.2)
    assert alone.tokens_per_s == pytest.approx(1000 / 22.4)


def test_micro_batches_of_unequal_size_take_their_mean_time() -> None:
    stages = (linear(10.0, 1.0),) * 2
    whole = predict(Pipeline(stages, micro_batches=2), 5)
    assert whole.tokens_per_s == pytest.approx(1000 * 5 / (13.0 + 12.0))


@pytest.mark.parametrize("wrong", [(0, 0.5, 0.0), (2, 1.5, 0.0), (2, 0.5, -0.1)])
def test_shares_and_depths_that_cannot_be_are_refused(wrong: tuple[int, float, float]) -> None:
    with pytest.raises(ValueError, match=r"depth|acceptance|drop"):
        Speculation(*wrong)


def test_pipelines_and_curves_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="2 micro-batches do not divide 3 stages"):
        equal_stages(3, micro_batches=2)
    for rates in ((), (0.5, 1.2)):
        with pytest.raises(ValueError, match="from 0 to 1"):
            AcceptanceCurve(rates)
