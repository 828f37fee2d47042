"""Clark's formulas against drawn numbers."""

import numpy as np
import pytest

from services.common.expected_maximum import expected_maximum


@pytest.mark.parametrize(
    ("means", "deviations"),
    [([5.0, 5.0], [1.0, 1.0]), ([5.0, 6.0], [2.0, 0.5]), ([3.0] * 4, [1.0] * 4), ([9.0, 1.0, 8.5], [0.5, 3.0, 1.0])],
)
def test_it_is_the_mean_of_the_largest(means: list[float], deviations: list[float]) -> None:
    drawn = np.random.default_rng(1).normal(means, deviations, (200_000, len(means))).max(axis=1)
    assert expected_maximum(means, deviations) == pytest.approx(drawn.mean(), abs=0.02)


def test_without_deviations_it_is_the_largest_mean() -> None:
    assert expected_maximum([2.0, 7.0, 3.0], [0.0] * 3) == 7.0
    assert expected_maximum([4.0], [1.0]) == 4.0
