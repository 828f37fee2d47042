"""The n-gram expert against a search that looks everywhere."""

from hypothesis import given
from hypothesis import strategies as st

from services.scheduler.apex.ngram_index import NgramIndex

tokens = st.lists(st.integers(0, 2), max_size=12)


def searched(text: list[int], shortest: int, longest: int) -> tuple[int, int]:
    """Where the text went on after the latest of the longest places that are like its end."""
    for size in range(longest, shortest - 1, -1):
        for behind in range(len(text) - 1, size - 1, -1):
            if text[behind - size : behind] == text[-size:]:
                return behind, size
    return 0, 0


@given(tokens, st.lists(tokens, max_size=8), st.integers(1, 3), st.integers(0, 3))
def test_finds_what_a_search_finds(prompt: list[int], blocks: list[list[int]], shortest: int, more: int) -> None:
    index, text = NgramIndex(prompt, shortest, shortest + more), list(prompt)
    for block in [[], *blocks]:
        index.extend(block)
        text += block
        assert tuple(index.found) == searched(text, shortest, shortest + more)


@given(tokens, st.integers(1, 20))
def test_drafts_what_followed_and_goes_on_as_the_text_repeats_itself(prompt: list[int], count: int) -> None:
    index = NgramIndex(prompt, 1, 3)
    draft = index.draft(count)
    if not index.found.match:
        assert draft == []
        return
    text = list(prompt)
    for token in draft:
        assert token == text[len(text) - (len(prompt) - index.found.behind)]
        text.append(token)


def test_only_the_end_of_a_long_prompt_is_looked_through(monkeypatch: object) -> None:
    index = NgramIndex([7, 8, 9, *range(100, 100 + 40_000), 7, 8], 2, 3)
    assert index.found.match == 0
