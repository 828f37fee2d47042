"""What a block gets and what becomes of it, without an engine."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from services.common.expert import Expert
from services.common.types import RoutedExpert
from services.scheduler.apex.block import Block, Choice, Why
from services.scheduler.apex.history import RequestHistory
from services.scheduler.apex.live_blocks import LiveBlocks, Verified, VerifyingStep, Wish
from services.scheduler.apex.policy import Candidate
from services.scheduler.experts_config import ExpertsConfig

STEP = VerifyingStep(requests=2, rows=9, seconds=0.02)
REPEATING = [1, 2, 3, 4, 1, 2]


class Scripted:
    """Chooses what it is told to, and remembers what it saw."""

    def __init__(self, *choices: Choice) -> None:
        self.choices = list(choices)
        self.candidates: list[Candidate] = []
        self.blocks: list[Block] = []
        self.odds_factors: Mapping[Expert, float] = {}

    def choose(self, candidates: Sequence[Candidate]) -> list[Choice]:
        self.candidates = list(candidates)
        return [self.choices.pop(0) for _ in candidates]

    def observe(self, blocks: Sequence[tuple[RequestHistory, Block]]) -> None:
        self.blocks += [block for _, block in blocks]


def live(*choices: Choice, **config: Any) -> tuple[LiveBlocks, Scripted]:
    drafter = {"kind": "eagle3", "model": "head"}
    policy = Scripted(*choices)
    return LiveBlocks(ExpertsConfig.model_validate({"drafter": drafter} | config), policy), policy


def test_each_expert_drafts_for_its_own_requests() -> None:
    blocks, _ = live(Choice(Expert.NGRAM, 3, Why.AVERAGES), Choice(Expert.EAGLE3, 2, Why.AVERAGES))
    for name in ("a", "b"):
        blocks.begin(name, REPEATING[:-1], REPEATING[-1:], 20, Wish())
    assert blocks.choose({"a": 10, "b": 10}) == 2
    assert blocks.drafts({"a": [9, 9], "b": [5, 6, 7]}, 0.01) == {"a": [3, 4, 1], "b": [5, 6]}
    closed = blocks.close({"a": Verified(3, 1, [3, 8]), "b": Verified(2, 2, [5, 6, 7])}, STEP)
    assert (closed["a"].accepted, closed["a"].wasted, closed["a"].is_censored, closed["b"].is_censored) == (
        1,
        2,
        False,
        True,
    )
    assert (closed["b"].draft_s, closed["b"].verify_s, closed["b"].requests) == (0.01, 0.02, 2)


def test_the_neural_drafter_is_not_wanted_when_nobody_asks_for_it() -> None:
    blocks, _ = live(Choice(Expert.NGRAM, 3, Why.AVERAGES), Choice(Expert.PLAIN, 0, Why.AVERAGES))
    for name in ("a", "b"):
        blocks.begin(name, REPEATING, [], 20, Wish())
    assert blocks.choose({"a": 10, "b": 10}) == 0
    assert blocks.drafts({}, 0.0) == {"a": [3, 4, 1], "b": []}


@pytest.mark.parametrize(
    ("wish", "room", "experts", "deepest"),
    [
        (Wish(), 10, [Expert.PLAIN, Expert.NGRAM, Expert.EAGLE3], 10),
        (Wish(), 99, [Expert.PLAIN, Expert.NGRAM, Expert.EAGLE3], 16),
        (Wish(), 0, [Expert.PLAIN], 0),
        (Wish(), -1, [Expert.PLAIN], 0),
        (Wish(can_draft=False), 10, [Expert.PLAIN], 0),
        (Wish(expert=Expert.EAGLE3), 10, [Expert.PLAIN, Expert.EAGLE3], 10),
    ],
)
def test_what_may_draft(wish: Wish, room: int, experts: list[Expert], deepest: int) -> None:
    blocks, policy = live(Choice(Expert.PLAIN, 0, Why.PINNED))
    blocks.begin("a", REPEATING, [], 20, wish)
    blocks.choose({"a": room})
    (candidate,) = policy.candidates
    assert (candidate.experts, candidate.deepest, candidate.expert) == (experts, deepest, wish.expert)


def test_a_text_without_repetition_has_no_ngram() -> None:
    blocks, policy = live(Choice(Expert.PLAIN, 0, Why.PINNED))
    blocks.begin("a", [1, 2, 3, 4], [], 20, Wish())
    blocks.choose({"a": 10})
    assert policy.candidates[0].experts == [Expert.PLAIN, Expert.EAGLE3]
    assert (policy.candidates[0].ngram_found, policy.candidates[0].ngram_match) == (0, 0)


def test_a_preemption_takes_the_choice_back_and_the_history_stays() -> None:
    again = Choice(Expert.NGRAM, 2, Why.AVERAGES)
    blocks, policy = live(Choice(Expert.NGRAM, 3, Why.AVERAGES), again)
    blocks.begin("a", REPEATING, [], 20, Wish())
    blocks.choose({"a": 10})
    blocks.preempted("a")
    assert not blocks.has_block("a")
    assert blocks.drafts({}, 0.0) == {}
    blocks.extend("a", [3, 4])
    blocks.choose({"a": 10})
    assert blocks.drafts({}, 0.0) == {"a": [1, 2]}
    assert policy.candidates[0].history.answer_tokens == 2


def test_drafts_that_wait_for_their_step_are_left_alone() -> None:
    """A request that a step had no room for keeps the drafts that it got before."""
    blocks, _ = live(Choice(Expert.EAGLE3, 2, Why.AVERAGES), Choice(Expert.EAGLE3, 1, Why.AVERAGES))
    for name in ("a", "b"):
        blocks.begin(name, REPEATING, [], 20, Wish())
    blocks.choose({"a": 10})
    assert blocks.drafts({"a": [5, 6]}, 0.01) == {"a": [5, 6]}
    blocks.choose({"b": 10})
    assert blocks.drafts({"b": [7]}, 0.02) == {"b": [7]}
    assert blocks.close({"a": Verified(2, 0, [9])}, STEP)["a"].draft_s == 0.01


def test_who_has_ended_is_forgotten() -> None:
    blocks, _ = live(Choice(Expert.PLAIN, 0, Why.PINNED))
    blocks.begin("a", REPEATING, [], 20, Wish())
    blocks.ended("a")
    blocks.ended("never there")
    assert "a" not in blocks
    assert blocks.choose({}) == 0


@pytest.mark.parametrize(
    ("wish", "first", "later"),
    [
        (Wish(routed=RoutedExpert("ngram", 4)), ("ngram", 4), ("ngram", None)),
        (Wish(routed=RoutedExpert("ngram", 4, first_block_only=True)), ("ngram", 4), (None, None)),
        (Wish(routed=RoutedExpert("plain", 0)), ("plain", 0), ("plain", None)),
        (Wish(expert=Expert.EAGLE3, routed=RoutedExpert("eagle3", 2)), ("eagle3", 2), ("eagle3", None)),
        (Wish(depth=6, routed=RoutedExpert("eagle3", 8)), ("eagle3", 6), ("eagle3", 6)),
        (Wish(expert=Expert.NGRAM, routed=RoutedExpert("eagle3", 2)), ("ngram", None), ("ngram", None)),
    ],
)
def test_what_the_router_chose_holds_where_the_request_leaves_it_open(
    wish: Wish, first: tuple[str | None, int | None], later: tuple[str | None, int | None]
) -> None:
    blocks, policy = live(*(Choice(Expert.PLAIN, 0, Why.ROUTED) for _ in range(2)))
    blocks.begin("a", REPEATING, [], 20, wish)
    for expected in (first, later):
        blocks.choose({"a": 10})
        (candidate,) = policy.candidates
        assert (candidate.expert, candidate.depth) == expected
        assert candidate.is_routed == (expected != (wish.expert, wish.depth))
        blocks.close({"a": Verified(0, 0, [9])}, STEP)
