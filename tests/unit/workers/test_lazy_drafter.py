"""What the neural drafter has not read yet."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from services.workers.vllm_lazy_drafter import Unread


def unread(first: int, tokens: list[int]) -> Unread:
    numbers = torch.tensor(tokens, dtype=torch.int32)
    return Unread(first, numbers, numbers.float()[:, None])


def told(each: Unread) -> tuple[int, list[int], list[float]]:
    assert each.hidden is not None
    return each.first, each.tokens.tolist(), each.hidden[:, 0].tolist()


def test_steps_join() -> None:
    assert told(unread(3, [30, 40]).followed_by(unread(5, [50]))) == (3, [30, 40, 50], [30.0, 40.0, 50.0])


def test_what_was_rolled_back_is_dropped() -> None:
    assert told(unread(3, [30, 40, 41]).followed_by(unread(5, [50]))) == (3, [30, 40, 50], [30.0, 40.0, 50.0])


def test_a_request_that_began_anew_has_nothing_left() -> None:
    assert told(unread(30, [1, 2]).followed_by(unread(0, [7, 8, 9]))) == (0, [7, 8, 9], [7.0, 8.0, 9.0])


def test_a_gap_cannot_be_read_over() -> None:
    assert told(unread(3, [30]).followed_by(unread(6, [60]))) == (6, [60], [60.0])


def test_the_newest_token_is_kept_for_drafting() -> None:
    older, newest = unread(3, [30, 40, 50]).without_newest()
    assert (told(older), told(newest)) == ((3, [30, 40], [30.0, 40.0]), (5, [50], [50.0]))


@given(st.integers(0, 40), st.integers(1, 20), st.integers(1, 8))
def test_the_end_of_a_block_is_noticed(first: int, count: int, block_size: int) -> None:
    has_last = any((position + 1) % block_size == 0 for position in range(first, first + count))
    assert unread(first, [0] * count).ends_block(block_size) == has_last
