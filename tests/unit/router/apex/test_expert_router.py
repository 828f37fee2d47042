"""Who drafts for a request: by its prompt, its pins, its options, and what the replicas can do."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.common.expert import Expert
from services.common.expert_action import Action
from services.common.types import ExpertChoice, RoutedExpert, SamplingOptions, Submission
from services.router.apex.expert_router import ExpertRouter, RouteReason
from services.router.apex.route_net import RouteNet
from tests.support.router_fakes import replica_info
from tests.support.small_route_net import route_net

NGRAM_2, NGRAM_8 = Action(Expert.NGRAM, 2), Action(Expert.NGRAM, 8)
EAGLE_2, EAGLE_8 = Action(Expert.EAGLE3, 2), Action(Expert.EAGLE3, 8)
OUTCOMES = {NGRAM_2: (1.2, 0.2), NGRAM_8: (1.5, 4.0), EAGLE_2: (1.4, 0.8), EAGLE_8: (1.1, 5.0)}
NGRAM_ONLY = replica_info("a", experts=("plain", "ngram"), deepest_draft_tokens=16)
EAGLE = replica_info("b", experts=("plain", "ngram", "eagle3"), deepest_draft_tokens=16)
PLAIN_ONLY = replica_info("c")


def router(net: RouteNet | None = None, **options: Any) -> ExpertRouter:
    return ExpertRouter(net or route_net(OUTCOMES), **options)


def submission(*token_ids: int, **sampling: Any) -> Submission:
    return Submission("x", token_ids or (1, 2, 3), SamplingOptions(**({"max_tokens": 50} | sampling)))


def chosen(choice: ExpertChoice | None) -> tuple[str, int | None, str]:
    assert choice is not None
    return choice.expert, choice.first_draft_tokens, choice.reason


def test_the_best_utility_wins_and_all_scores_are_told() -> None:
    choice = router().choose(submission(), [NGRAM_ONLY, EAGLE])
    assert chosen(choice) == ("ngram", 8, RouteReason.LEARNED)
    assert [(each.expert, each.draft_tokens) for each in choice.scores] == [
        ("ngram", 8), ("eagle3", 2), ("ngram", 2), ("eagle3", 8), ("plain", 0),
    ]  # fmt: skip
    assert [round(each.speedup, 4) for each in choice.scores] == [1.5, 1.4, 1.2, 1.1, 1.0]


def test_a_profile_that_minds_waste_chooses_what_wastes_less() -> None:
    assert chosen(router(profile="efficient").choose(submission(), [EAGLE]))[:2] == ("ngram", 2)
    assert chosen(router().choose(submission(profile="efficient"), [EAGLE]))[:2] == ("ngram", 2)
    assert router().choose(submission(profile="efficient"), [EAGLE]).profile == "efficient"


def test_the_prompt_decides() -> None:
    net = route_net(OUTCOMES, repeated_2=0.0, entropy=2.0)
    repeating, mixed = [1] * 40, range(40)
    assert chosen(router(net).choose(submission(*repeating), [EAGLE]))[:2] == ("ngram", 8)
    assert chosen(router(net).choose(submission(*mixed), [EAGLE]))[:2] == ("eagle3", 8)


def test_an_expert_that_nobody_has_is_not_chosen() -> None:
    net = route_net(OUTCOMES | {EAGLE_2: (3.0, 0.1)})
    assert chosen(router(net).choose(submission(), [NGRAM_ONLY, EAGLE]))[:2] == ("eagle3", 2)
    assert chosen(router(net).choose(submission(), [NGRAM_ONLY]))[:2] == ("ngram", 8)
    shallow = replace(NGRAM_ONLY, deepest_draft_tokens=4)
    assert chosen(router(net).choose(submission(), [shallow]))[:2] == ("ngram", 2)


def test_replicas_that_do_not_speculate_are_left_alone() -> None:
    assert router().choose(submission(), [PLAIN_ONLY]) is None
    assert router().choose(submission(), []) is None


def test_a_short_answer_has_no_room_for_deep_drafts() -> None:
    assert chosen(router().choose(submission(max_tokens=8), [EAGLE]))[:2] == ("eagle3", 2)
    assert chosen(router().choose(submission(max_tokens=1), [EAGLE]))[:2] == ("plain", 0)


@pytest.mark.parametrize(
    ("pins", "expected"),
    [
        ({"expert": "ngram", "draft_tokens": 3}, ("ngram", 3, RouteReason.PINNED)),
        ({"expert": "plain"}, ("plain", 0, RouteReason.PINNED)),
        ({"draft_tokens": 0}, ("plain", 0, RouteReason.PINNED)),
        ({"expert": "eagle3"}, ("eagle3", 2, RouteReason.LEARNED)),
        ({"draft_tokens": 3}, ("eagle3", 3, RouteReason.LEARNED)),
        ({"draft_tokens": 7}, ("ngram", 7, RouteReason.LEARNED)),
        ({"expert": "draft_model"}, ("draft_model", None, RouteReason.PINNED)),
        ({"min_p": 0.1}, ("plain", 0, RouteReason.NOT_POSSIBLE)),
        ({"logit_bias": {1: 2.0}, "expert": "ngram"}, ("plain", 0, RouteReason.NOT_POSSIBLE)),
    ],
)
def test_what_a_request_asks_for(pins: dict[str, Any], expected: tuple[str, int | None, str]) -> None:
    assert chosen(router().choose(submission(**pins), [EAGLE])) == expected


def test_without_a_model_pins_are_all_there_is() -> None:
    pinned, free = submission(expert="eagle3"), submission()
    without = ExpertRouter(None)
    assert chosen(without.choose(pinned, [EAGLE])) == ("eagle3", None, RouteReason.PINNED)
    assert without.choose(free, [EAGLE]) is None
    assert (without.has_say(pinned.sampling), without.has_say(free.sampling)) == (True, False)


def test_a_model_of_another_vocabulary_is_not_asked() -> None:
    assert router(route_net(OUTCOMES, vocab_size=77)).choose(submission(), [EAGLE]) is None


def test_a_score_that_is_not_finite_leaves_the_choice_to_the_replica() -> None:
    net = route_net(OUTCOMES)
    net._layers[1][1][-2] = np.nan
    choice = router(net).choose(submission(), [EAGLE])
    assert chosen(choice) == ("", None, RouteReason.FALLBACK)
    assert router(net).routed(choice) is None


def test_what_the_replica_is_told() -> None:
    for first_block_only in (False, True):
        one = router(first_block_only=first_block_only)
        assert one.routed(one.choose(submission(), [EAGLE])) == RoutedExpert("ngram", 8, first_block_only)
        assert one.routed(one.choose(submission(expert="plain"), [EAGLE])) is None
        assert one.routed(None) is None


@given(
    st.sets(st.sampled_from([NGRAM_2, NGRAM_8, EAGLE_2, EAGLE_8]), min_size=1),
    st.sampled_from([None, *(each.value for each in Expert)]),
    st.none() | st.integers(0, 40),
    st.integers(1, 60),
    st.integers(0, 16),
    st.sampled_from([("plain", "ngram"), ("plain", "eagle3"), ("plain", "ngram", "draft_model")]),
)
def test_whatever_is_chosen_can_be_done(
    actions: set[Any], expert: str | None, depth: int | None, max_tokens: int, deepest: int, experts: tuple[str, ...]
) -> None:
    net = route_net({each: OUTCOMES[each] for each in actions})
    info = replica_info("a", experts=experts, deepest_draft_tokens=deepest)
    choice = router(net).choose(submission(expert=expert, draft_tokens=depth, max_tokens=max_tokens), [info])
    if choice is None:
        return
    assert (choice.expert == "plain") == (choice.first_draft_tokens == 0)
    if choice.reason == RouteReason.LEARNED:
        assert choice.expert in experts
        assert expert in (None, choice.expert)
        best = choice.scores[0]
        assert best.draft_tokens <= min(deepest, max_tokens - 1)
        assert choice.first_draft_tokens == (best.draft_tokens if depth is None else depth)
