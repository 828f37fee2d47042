"""The causal state is what a slow count over the past says, and nothing of the future."""

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.common.expert import Expert
from services.scheduler.apex.block import Block, Choice, Why
from services.scheduler.apex.features import FEATURES
from services.scheduler.apex.history import RequestHistory
from services.scheduler.apex.prefix_statistics import WINDOW, PrefixStatistics

texts = st.lists(st.integers(0, 5), max_size=200)


def block_of(index: int, expert: Expert, drafted: int, accepted: int, match: int = 0) -> Block:
    choice = Choice(expert, drafted, Why.AVERAGES, ngram_match=match)
    return Block(index, choice, drafted, accepted, accepted + 1, 4, 20, 0.001, 0.01)


def feature(history: RequestHistory, expert: Expert, name: str) -> float:
    return float(history.features(expert, 0, 0)[FEATURES.index(name)])


@given(texts, texts)
def test_entropy_and_repetition_are_those_of_a_naive_count(prompt: list[int], answer: list[int]) -> None:
    statistics = PrefixStatistics(prompt)
    statistics.extend(answer)
    text = prompt + answer
    window = text[-WINDOW:]
    if len(window) > 1:
        shares = [count / len(window) for count in Counter(window).values()]
        entropy = -sum(share * math.log(share) for share in shares) / math.log(len(window))
        assert statistics.entropy == pytest.approx(entropy, abs=1e-9)
    for length, found in ((2, statistics.repeated_2), (3, statistics.repeated_3)):
        grams = [tuple(text[end - length : end]) for end in range(length, len(text) + 1)]
        repeated = [gram in grams[:index] for index, gram in enumerate(grams)]
        ends = repeated[max(0, len(text) - WINDOW - length + 1) :] if len(text) > WINDOW else repeated
        assert found == pytest.approx(sum(ends[-WINDOW:]) / max(1, len(window)))


blocks = st.lists(
    st.tuples(st.sampled_from([Expert.NGRAM, Expert.EAGLE3, Expert.PLAIN]), st.integers(1, 16), st.integers(0, 16)),
    min_size=1,
    max_size=12,
)


def replay(choices: list[tuple[Expert, int, int]], seed: int) -> list[np.ndarray]:
    """Features before each block, where the tokens and outcomes behind each are drawn as they come."""
    rng = np.random.default_rng(seed)
    history, seen = RequestHistory(rng.integers(0, 9, 30).tolist(), 100), []
    for index, (expert, drafted, accepted) in enumerate(choices):
        seen.append(np.concatenate([history.features(each, 2, 5) for each in Expert]))
        depth = 0 if expert is Expert.PLAIN else drafted
        block = block_of(index, expert, depth, min(accepted, depth))
        history.observe(block, rng.integers(0, 9, block.emitted).tolist())
    return seen


@given(blocks, st.randoms(), st.data())
def test_another_future_changes_nothing(
    choices: list[tuple[Expert, int, int]], random: object, data: st.DataObject
) -> None:
    now = data.draw(st.integers(0, len(choices) - 1))
    future = choices[now:]
    random.shuffle(future)  # type: ignore[attr-defined]
    before, after = replay(choices, seed=1)[: now + 1], replay(choices[:now] + future, seed=1)[: now + 1]
    assert all(np.array_equal(one, other) for one, other in zip(before, after, strict=True))


def test_feedback_is_kept_by_expert() -> None:
    history = RequestHistory([1, 2, 3], 50)
    history.observe(block_of(0, Expert.EAGLE3, drafted=4, accepted=1), [7, 8])
    history.observe(block_of(1, Expert.NGRAM, drafted=2, accepted=2, match=5), [9, 7, 8])
    assert feature(history, Expert.EAGLE3, "last_rejected_at") == 2
    assert feature(history, Expert.EAGLE3, "share_slow") == 0.25
    assert feature(history, Expert.EAGLE3, "blocks_since") == pytest.approx(math.log(2))
    assert feature(history, Expert.NGRAM, "last_rejected_at") == 0
    assert feature(history, Expert.NGRAM, "length_fast") == 2
    assert feature(history, Expert.DRAFT_MODEL, "blocks") == 0
    assert feature(history, Expert.PLAIN, "progress") == pytest.approx(0.1)
    assert feature(history, Expert.NGRAM, "emitted_slow") == pytest.approx(2.5)
    assert history.at_risk[3, :3].tolist() == [1, 1, 0], "the third draft was not reached"
    assert history.at_risk[2, :3].tolist() == [1, 1, 0], "the match was long"
    assert history.rejected.tolist() == [0, 0, 0, 1, 0]
