"""Lookups in a request's own text, against the plainest way to say what they shall find."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.workers.context_lookup import LONGEST_MATCH, Found, look_up


def plainly(tokens: list[int]) -> Found | None:
    for length in range(min(LONGEST_MATCH, len(tokens) - 1), 0, -1):
        suffix = tokens[-length:]
        for start in range(len(tokens) - length - 1, -1, -1):
            if tokens[start : start + length] == suffix:
                return Found(tokens[start + length], length)
    return None


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60))
def test_it_finds_what_followed_the_latest_of_the_longest_matches(tokens: list[int]) -> None:
    assert look_up(np.array(tokens, np.int32)) == plainly(tokens)


@pytest.mark.parametrize(
    ("tokens", "found"),
    [
        ([5], None),
        ([5, 6, 7], None),
        ([5, 5], Found(5, 1)),
        ([1, 2, 9, 4, 2, 8, 1, 2], Found(9, 2)),
        ([2, 9, 2, 8, 2], Found(8, 1)),
        (list(range(20)) * 2, Found(0, LONGEST_MATCH)),
    ],
)
def test_examples(tokens: list[int], found: Found | None) -> None:
    assert look_up(np.array(tokens, np.int32)) == found
