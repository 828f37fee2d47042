"""Even shares of what cannot be cut."""

import pytest

from services.common.even_shares import even_shares


@pytest.mark.parametrize(
    ("total", "parts", "shares"),
    [(30, 2, [15, 15]), (31, 2, [16, 15]), (15, 4, [4, 4, 4, 3]), (2, 3, [1, 1, 0]), (7, 1, [7])],
)
def test_shares_differ_by_one_at_most_the_larger_first(total: int, parts: int, shares: list[int]) -> None:
    assert even_shares(total, parts) == shares
