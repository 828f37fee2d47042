"""In a world of known hazards and costs the averages find what an oracle would choose, and follow when it changes."""

import pytest

from services.common.expert import DEPTHS, Expert
from services.common.expert_profiles import ProfileName
from services.scheduler.apex.averages_policy import AveragesPolicy
from services.scheduler.apex.block import Block, Why
from services.scheduler.apex.chooser import Chooser
from services.scheduler.apex.options import Pins
from tests.support.apex_world import World, WorldRequest


def make_policy(explore: float = 0.02, profile: ProfileName = "speed", pins: Pins | None = None) -> AveragesPolicy:
    return AveragesPolicy(Expert.EAGLE3, Chooser(profile, explore), pins or Pins())


def fixed_hazards(ngram: float, neural: float) -> World:
    by_expert = {Expert.NGRAM: ngram, Expert.EAGLE3: neural}
    return World(lambda expert, _: by_expert[expert])


def oracle(world: World, requests: list[WorldRequest]) -> float:
    """Tokens per second of the best expert and depth for all requests."""
    best = 0.0
    for expert in (Expert.NGRAM, Expert.EAGLE3):
        for depth in DEPTHS:
            living = [(1 - world.hazards(expert, requests[0])) ** (j + 1) for j in range(depth)]
            tokens = len(requests) * (1 + sum(living))
            seconds = world.verify_s(len(requests) * (1 + depth))
            seconds += world.draft_s(depth) if expert.is_neural else 0.0
            best = max(best, tokens / seconds)
    return best


@pytest.mark.parametrize(
    ("ngram", "neural", "requests"), [(0.6, 0.15, 1), (0.1, 0.2, 1), (0.6, 0.15, 8), (0.3, 0.5, 16), (0.9, 0.9, 4)]
)
def test_it_comes_close_to_the_oracle(ngram: float, neural: float, requests: int) -> None:
    world = fixed_hazards(ngram, neural)
    live = [world.request() for _ in range(requests)]
    policy = make_policy()
    world.run(policy, live, 150)
    reached = world.run(policy, live, 250 if requests == 1 else 150)
    assert reached > 0.93 * oracle(world, live)


def most_common_expert(blocks: list[Block]) -> Expert:
    experts = [each.choice.expert for each in blocks]
    return max(set(experts), key=experts.count)


def test_it_notices_that_the_world_has_changed() -> None:
    world = fixed_hazards(ngram=0.8, neural=0.1)
    live = [world.request() for _ in range(4)]
    policy = make_policy()
    world.run(policy, live, 250)
    assert most_common_expert(world.step(policy, live)) is Expert.EAGLE3
    world.hazards = fixed_hazards(ngram=0.1, neural=0.8).hazards
    world.run(policy, live, 400)
    assert world.run(policy, live, 100) > 0.9 * oracle(world, live)
    assert most_common_expert(world.step(policy, live)) is Expert.NGRAM


def test_nothing_is_drafted_where_drafting_loses() -> None:
    world = fixed_hazards(ngram=0.85, neural=0.8)
    world.verify_s = lambda rows: 0.001 + 0.010 * rows
    live = [world.request() for _ in range(4)]
    policy = make_policy()
    world.run(policy, live, 250)
    blocks = [block for _ in range(100) for block in world.step(policy, live)]
    plain = [each for each in blocks if each.choice.depth == 0]
    assert len(plain) > 0.95 * len(blocks)
    assert {each.choice.why for each in blocks if each.choice.depth} <= {Why.EXPLORED}


def test_exploring_costs_no_more_than_its_share_and_can_be_switched_off() -> None:
    rates = []
    for explore in (0.0, 0.02):
        world = fixed_hazards(ngram=0.5, neural=0.3)
        live = [world.request()]
        policy = make_policy(explore)
        world.run(policy, live, 100)
        rates.append(world.run(policy, live, 200))
        explored = [block.choice.why for _ in range(200) for block in world.step(policy, live)].count(Why.EXPLORED)
        assert explored == 0 if not explore else 0 < explored < 40
    assert rates[1] > 0.96 * rates[0]


def test_a_step_without_decoding_requests_teaches_nothing() -> None:
    policy = make_policy()
    policy.observe([])
    world = fixed_hazards(ngram=0.5, neural=0.5)
    assert len(policy.choose([world.candidate(world.request())])) == 1


def test_a_request_of_its_own_kind_is_treated_as_such() -> None:
    world = World(lambda _, request: 0.05 if request.kind else 0.7, neural=None)
    live = [world.request(kind) for kind in (0, 0, 0, 1)]
    policy = make_policy(explore=0.0)
    world.run(policy, live, 200)
    depths = [[block.choice.depth for block in world.step(policy, live)] for _ in range(50)]
    easy, hard = sum(each[3] for each in depths) / 50, sum(each[0] for each in depths) / 50
    assert easy > hard + 4


def test_profiles_that_mind_waste_waste_less() -> None:
    shares = []
    for profile in ("speed", "balanced", "efficient"):
        world = fixed_hazards(ngram=0.4, neural=0.3)
        live, policy = [world.request() for _ in range(4)], make_policy(profile=profile)
        world.run(policy, live, 60)
        blocks = [block for _ in range(80) for block in world.step(policy, live)]
        shares.append(sum(each.wasted for each in blocks) / max(1, sum(each.drafted for each in blocks)))
    assert shares[0] > shares[1] > shares[2]


def test_pins_come_first_and_say_so() -> None:
    world = fixed_hazards(ngram=0.5, neural=0.5)
    policy, request = make_policy(explore=0.0), world.request()

    def choose(**pins: object) -> tuple[Expert, int, Why]:
        (choice,) = policy.choose([world.candidate(request, **pins)])
        return choice.expert, choice.depth, choice.why

    assert choose(expert=Expert.EAGLE3, depth=5) == (Expert.EAGLE3, 5, Why.PINNED)
    assert choose(depth=0) == (Expert.PLAIN, 0, Why.PINNED)
    assert choose(expert=Expert.PLAIN) == (Expert.PLAIN, 0, Why.PINNED)
    assert choose(expert=Expert.DRAFT_MODEL, depth=3) == (Expert.PLAIN, 0, Why.NOT_POSSIBLE)
    expert, _, why = choose(expert=Expert.NGRAM)
    assert (expert, why) == (Expert.NGRAM, Why.AVERAGES)
    world.ngram_found = 0
    assert choose(expert=Expert.NGRAM, depth=3) == (Expert.PLAIN, 0, Why.NOT_POSSIBLE)


def test_a_requests_own_profile_has_its_own_price() -> None:
    world = fixed_hazards(ngram=0.45, neural=0.4)
    live, policy = [world.request() for _ in range(2)], make_policy(explore=0.0)
    world.run(policy, live, 100)
    free, sparing = policy.choose([world.candidate(live[0]), world.candidate(live[1], waste_price=2.0)])
    assert sparing.depth < free.depth


@pytest.mark.parametrize("depths", [(0, 4, 16), (0, 8, 12, 16), (0, 1)])
def test_depths_are_chosen_among_those_that_are_configured(depths: tuple[int, ...]) -> None:
    world = fixed_hazards(ngram=0.2, neural=0.3)
    live, policy = [world.request() for _ in range(3)], make_policy(explore=0.2, pins=Pins(depths=depths))
    seen = {block.choice.depth for _ in range(200) for block in world.step(policy, live)}
    assert seen <= set(depths)
    assert len(seen) > 1
    (asked,) = policy.choose([world.candidate(live[0], expert=Expert.EAGLE3, depth=3)])
    assert asked.depth == 3


def test_the_replica_s_pins_hold_for_requests_that_ask_for_nothing() -> None:
    world = fixed_hazards(ngram=0.5, neural=0.5)
    policy = make_policy(explore=0.0, pins=Pins(Expert.NGRAM, None))
    free, asks = policy.choose(
        [world.candidate(world.request()), world.candidate(world.request(), expert=Expert.EAGLE3)]
    )
    assert (free.expert, asks.expert) == (Expert.NGRAM, Expert.EAGLE3)


def test_a_choice_says_what_was_compared_and_expected() -> None:
    world = fixed_hazards(ngram=0.5, neural=0.5)
    (choice,) = make_policy(explore=0.0).choose([world.candidate(world.request())])
    assert len(choice.scores) == 17
    assert max(choice.scores, key=lambda key: choice.scores[key]) == (choice.expert, choice.depth)
    assert choice.expected_accepted is not None and 0 < choice.expected_accepted < choice.depth
    assert choice.hazards is not None and choice.hazards.shape == (16,)
    assert make_policy().choose([]) == []
