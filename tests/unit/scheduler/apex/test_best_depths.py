"""The step's choice against trying everything."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.common.expert import Expert
from services.scheduler.apex.best_depths import StepTimes, best_columns
from services.scheduler.apex.history import RequestHistory
from services.scheduler.apex.options import COLUMNS, DEPTH_OF_COLUMN, NEURAL_COLUMNS, Options, Pins
from services.scheduler.apex.policy import Candidate
from services.scheduler.apex.survival import expected_accepted

HISTORY = RequestHistory([1], 10)
EXPERTS = (Expert.PLAIN, Expert.NGRAM, Expert.EAGLE3)


def make_options(*limits: tuple[int, int], **pins: object) -> Options:
    """``limits``: n-gram tokens found and the deepest depth, of each request."""
    candidates = [Candidate(HISTORY, EXPERTS, found, 2, deepest, **pins) for found, deepest in limits]  # type: ignore[arg-type]
    return Options.of(candidates, Expert.EAGLE3, Pins())


def rate_of(columns: tuple[int, ...], values: np.ndarray, options: Options, times: StepTimes) -> float:
    drafted = [int(options.drafted[row, column]) for row, column in enumerate(columns)]
    deepest = max(d if column >= NEURAL_COLUMNS.start else 0 for d, column in zip(drafted, columns, strict=True))
    tokens = sum(1 + values[row, column] for row, column in enumerate(columns))
    return float(tokens / (times.verify[sum(drafted)] + times.draft[deepest]))


def brute_force(values: np.ndarray, options: Options, times: StepTimes) -> float:
    allowed = [np.flatnonzero(row).tolist() for row in options.allowed]
    return max(rate_of(columns, values, options, times) for columns in product(*allowed))


hazards = st.floats(0.02, 0.98)
requests = st.lists(st.tuples(hazards, hazards, st.integers(0, 6), st.integers(0, 4)), min_size=1, max_size=3)


def instance(given_requests: list[tuple[float, float, int, int]], waste: float) -> tuple[np.ndarray, Options]:
    options = make_options(*((found, deepest) for _, _, found, deepest in given_requests))
    by_position = np.array([[[ngram] * 16, [neural] * 16] for ngram, neural, _, _ in given_requests], np.float32)
    expected = options.by_column(expected_accepted(by_position))
    return expected - waste * (options.drafted - expected), options


@settings(max_examples=60, deadline=None)
@given(requests, st.floats(0.0, 2e-3), st.floats(0.0, 3e-3), st.floats(0.0, 3e-3), st.sampled_from([0.0, 0.3]))
def test_it_finds_the_best_of_all_choices_where_rows_cost_the_same(
    drawn: list[tuple[float, float, int, int]], row_s: float, fixed_s: float, draft_s: float, waste: float
) -> None:
    values, options = instance(drawn, waste)
    rows = np.arange(len(drawn), len(drawn) + int(options.drafted.max(axis=1).sum()) + 1)
    draft = np.append(0.0, fixed_s + draft_s * np.arange(1, 17))
    times = StepTimes(0.01 + row_s * rows, draft)
    best = best_columns(values, options, times)
    assert best.rate == pytest.approx(rate_of(tuple(best.columns), values, options, times), rel=1e-5)
    assert best.rate >= brute_force(values, options, times) * (1 - 2e-3)
    assert options.allowed[np.arange(len(drawn)), best.columns].all()


@settings(max_examples=40, deadline=None)
@given(requests, st.integers(4, 9), st.floats(0.0, 1e-3), st.floats(0.0, 1e-3))
def test_and_next_to_the_best_where_step_times_bend(
    drawn: list[tuple[float, float, int, int]], knee: int, before_s: float, behind_s: float
) -> None:
    values, options = instance(drawn, 0.0)
    rows = np.arange(len(drawn), len(drawn) + int(options.drafted.max(axis=1).sum()) + 1)
    verify = 0.01 + before_s * np.minimum(rows, knee) + behind_s * np.maximum(rows - knee, 0)
    times = StepTimes(verify, 0.001 * np.arange(17))
    assert best_columns(values, options, times).rate >= brute_force(values, options, times) * 0.98


def test_nothing_is_drafted_where_rows_cost_more_than_they_bring() -> None:
    values, options = instance([(0.5, 0.5, 6, 4)] * 3, 0.0)
    times = StepTimes(0.01 * np.arange(3, 60), np.zeros(17))
    assert best_columns(values, options, times).columns.tolist() == [0, 0, 0]


def test_one_request_alone_does_not_make_the_batch_wait_for_the_drafter() -> None:
    times = StepTimes(np.full(2000, 0.01), 0.004 + 0.002 * np.arange(17.0))
    times.draft[0] = 0.0
    good, bad = (0.9, 0.05, 0, 16), (0.05, 0.9, 16, 16)
    alone, options = instance([good], 0.0)
    assert best_columns(alone, options, times).columns[0] >= NEURAL_COLUMNS.start
    values, options = instance([good, *[bad] * 40], 0.0)
    columns = best_columns(values, options, times).columns
    assert (columns < NEURAL_COLUMNS.start).all()


def test_options_are_cut_to_what_fits_and_is_found() -> None:
    options = make_options((5, 16), (16, 3), (0, 0))
    assert options.drafted[0][options.allowed[0]].tolist() == [0, 1, 2, 3, 4, 5, *DEPTH_OF_COLUMN[NEURAL_COLUMNS]]
    assert options.drafted[1][options.allowed[1]].tolist() == [0, 1, 2, 3, 1, 2, 3]
    assert options.allowed[2].tolist() == [True, *[False] * (COLUMNS - 1)]


@pytest.mark.parametrize(
    ("pins", "left"),
    [
        ({"expert": Expert.NGRAM}, [0, 1, 2, 3, 4, 5]),
        ({"expert": Expert.NGRAM, "depth": 16}, [5]),
        ({"depth": 7}, [5, 7]),
        ({"depth": 0}, [0]),
        ({"expert": Expert.PLAIN, "depth": 7}, [0]),
        ({"expert": Expert.DRAFT_MODEL, "depth": 7}, [0]),
    ],
)
def test_pins_leave_what_they_ask_for(pins: dict[str, object], left: list[int]) -> None:
    options = make_options((5, 16), **pins)
    assert options.drafted[0][options.allowed[0]].tolist() == left
