"""Where a request goes: pressure, two draws, reservations, and what happens when none is to be had."""

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import trace

from services.common.errors import RequestEndedError
from services.common.expert import Expert
from services.common.expert_action import Action
from services.common.outcome import Outcome
from services.common.types import ReplicaState, SamplingOptions, Submission
from services.router.apex.expert_router import ExpertRouter
from services.router.kv_estimate import blocks_needed
from services.router.picker import Candidate, draw
from tests.support.router_fakes import (
    FakeLedger,
    FakePool,
    FakeSession,
    FakeSubmitted,
    build_call,
    ledger_replica,
    replica_info,
)
from tests.support.small_route_net import route_net

SUBMISSION = Submission("x", tuple(range(32)), SamplingOptions(max_tokens=32))
"""Four blocks of 16."""


async def place(pool: FakePool, ledger: FakeLedger | None = None, tried: tuple[str, ...] = ()) -> FakeSubmitted:
    placement = build_call(pool, ledger).placement
    submitted = (await placement.place(SUBMISSION, "tiny", tried, trace.INVALID_SPAN)).submitted
    return submitted  # type: ignore[return-value]


async def test_less_forecast_pressure_wins() -> None:
    readings = {
        "full": ledger_replica("full", held=80),
        "filling": ledger_replica("filling", held=10, forecast_peak=90),
        "promised": ledger_replica("promised", held=10, reserved=60),
        "idle": ledger_replica("idle", held=5),
    }
    for other in ("full", "filling", "promised"):
        pool = FakePool(FakeSession(other), FakeSession("idle"))
        assert (await place(pool, FakeLedger(replicas=readings))).replica_id == "idle"


async def test_own_requests_count_where_the_ledger_knows_nothing() -> None:
    busy, idle = FakeSession("busy"), FakeSession("idle")
    busy.own_blocks = 50
    for ledger in (
        None,
        FakeLedger(),
        FakeLedger(replicas={"busy": ledger_replica("busy")}),
        FakeLedger(reachable=False),
    ):
        assert (await place(FakePool(busy, idle), ledger)).replica_id == "idle"


async def test_load_spreads_over_alike_replicas() -> None:
    pool = FakePool(*(FakeSession(f"r{number}") for number in range(4)))
    placement = build_call(pool).placement
    for number in range(400):
        await placement.place(Submission(f"x{number}", (1,), SamplingOptions()), "tiny", (), trace.INVALID_SPAN)
    counts = Counter({name: session.in_flight for name, session in pool.sessions.items()})
    assert sum(counts.values()) == 400
    assert max(counts.values()) - min(counts.values()) <= 20


async def test_a_refused_reservation_goes_to_the_other() -> None:
    ledger = FakeLedger(
        free={"r0": 0, "r1": 100}, replicas={"r0": ledger_replica("r0"), "r1": ledger_replica("r1", held=50)}
    )
    submitted = await place(FakePool(FakeSession("r0"), FakeSession("r1")), ledger)
    assert submitted.replica_id == "r1"
    assert ledger.asked == [("r0", 4), ("r1", 4)]
    assert ledger.held[submitted.submission.reservation_id] == ("r1", 4)


async def test_refused_everywhere_the_replicas_queue_decides() -> None:
    ledger = FakeLedger(
        free={"r0": 0, "r1": 0}, replicas={"r0": ledger_replica("r0", held=90), "r1": ledger_replica("r1")}
    )
    submitted = await place(FakePool(FakeSession("r0"), FakeSession("r1")), ledger)
    assert submitted.replica_id == "r1"
    assert submitted.submission.reservation_id == ""


async def test_a_silent_ledger_costs_no_request() -> None:
    submitted = await place(FakePool(FakeSession("r0")), FakeLedger(fails=True))
    # The grant may have been made before its answer was lost, so the id travels along.
    assert submitted.submission.reservation_id


async def test_a_ledger_known_to_be_away_is_not_asked() -> None:
    ledger = FakeLedger(reachable=False)
    submitted = await place(FakePool(FakeSession("r0")), ledger)
    assert (submitted.submission.reservation_id, ledger.asked) == ("", [])


async def test_a_replica_that_leaves_meanwhile_gives_its_reservation_back() -> None:
    session = FakeSession("r0")

    class Leaves(FakeLedger):
        async def reserve(self, replica_id: str, reservation_id: str, blocks: int) -> bool:
            session.state = ReplicaState.DRAINING
            return await super().reserve(replica_id, reservation_id, blocks)

    ledger = Leaves()
    under_test = build_call(FakePool(session), ledger)
    await under_test.reservations.start()
    with pytest.raises(RequestEndedError) as caught:
        await under_test.placement.place(SUBMISSION, "tiny", (), trace.INVALID_SPAN)
    assert caught.value.outcome is Outcome.REJECTED_UNAVAILABLE
    await under_test.reservations.close()
    assert ledger.held == {}


@given(st.lists(st.floats(0, 2), min_size=1, max_size=6), st.integers(), st.sets(st.integers(0, 8)))
def test_draws_are_distinct_with_all_holders_and_the_best_is_first(
    pressures: list[float], seed: int, holding: set[int]
) -> None:
    sessions = {FakeSession(f"r{number}"): pressure for number, pressure in enumerate(pressures)}
    holders = {f"r{number}" for number in holding}

    def assess(session: FakeSession) -> Candidate[FakeSession]:
        return Candidate(session, sessions[session], 0.3 if session.replica_id in holders else 0.0)

    drawn = draw(list(sessions), assess, random.Random(seed), holders)
    names = [candidate.replica.replica_id for candidate in drawn]
    there = holders & {session.replica_id for session in sessions}
    assert there <= set(names)
    assert min(2, len(sessions)) <= len(names) <= 2 + len(there)
    assert len(set(names)) == len(names)
    assert drawn == sorted(drawn, key=lambda candidate: candidate.rank)


async def test_a_cached_prompt_draws_its_request_unless_the_replica_is_much_fuller() -> None:
    prompt = Submission("x", tuple(range(160)), SamplingOptions(max_tokens=16))
    for held, expected in ((10, "cached"), (40, "cached"), (60, "idle")):
        readings = {"cached": ledger_replica("cached", held=held), "idle": ledger_replica("idle")}
        # Nine of the ten blocks: the last token is always computed.
        ledger = FakeLedger(replicas=readings, prefixes={"cached": 9})
        pool = FakePool(FakeSession("idle"), FakeSession("cached"))
        placement = build_call(pool, ledger).placement
        submitted = (await placement.place(prompt, "tiny", (), trace.INVALID_SPAN)).submitted
        assert submitted.replica_id == expected, held


async def test_one_with_the_prompt_is_found_among_many_and_one_without_a_place_is_not() -> None:
    pool = FakePool(*(FakeSession(f"r{number}") for number in range(50)))
    ledger = FakeLedger(prefixes={"r33": 1, "gone": 1})
    for _ in range(5):
        assert (await place(pool, ledger)).replica_id == "r33"
    pool.sessions["r33"].has_slot = False
    assert (await place(pool, ledger)).replica_id != "r33"


async def test_only_replicas_with_the_chosen_expert_are_drawn() -> None:
    kinds = {"lookup": ("plain", "ngram"), "eagle": ("plain", "eagle3")}
    pool = FakePool(
        FakeSession("bare"), *(FakeSession(name, experts=has, deepest_draft_tokens=8) for name, has in kinds.items())
    )
    net = route_net({Action(Expert.NGRAM, 2): (1.2, 0.1), Action(Expert.EAGLE3, 4): (1.5, 2.0)})
    placement = build_call(pool, experts=ExpertRouter(net)).placement
    for tried, expected in (((), "eagle"), (("eagle",), "lookup")):
        placed = await placement.place(SUBMISSION, "tiny", tried, trace.INVALID_SPAN)
        assert placed.submitted.replica_id == expected
        assert placed.expert is not None
        routed = placed.submitted.submission.expert  # type: ignore[attr-defined]
        assert (routed.expert, routed.first_draft_tokens) == (placed.expert.expert, placed.expert.first_draft_tokens)
    placed = await placement.place(SUBMISSION, "tiny", ("eagle", "lookup"), trace.INVALID_SPAN)
    assert (placed.submitted.replica_id, placed.expert) == ("bare", None)


async def test_a_pinned_expert_is_looked_for_without_a_model() -> None:
    pool = FakePool(
        *(FakeSession(f"bare-{index}") for index in range(5)),
        FakeSession("eagle", experts=("plain", "eagle3"), deepest_draft_tokens=8),
    )
    pinned = Submission("x", (1, 2), SamplingOptions(max_tokens=8, expert="eagle3"))
    placed = await build_call(pool).placement.place(pinned, "tiny", (), trace.INVALID_SPAN)
    assert placed.submitted.replica_id == "eagle"


@pytest.mark.parametrize(
    ("prompt", "sampling", "blocks"),
    [
        (16, SamplingOptions(max_tokens=1), 2),
        (17, SamplingOptions(max_tokens=16), 3),
        (1, SamplingOptions(), 1 + 2),  # expected 32 of 256 allowed
        (250, SamplingOptions(), 16 + 1),  # the context leaves 6
        (16, SamplingOptions(n=4, max_tokens=16), 1 + 4),  # choices share the prompt
    ],
)
def test_blocks_needed(prompt: int, sampling: SamplingOptions, blocks: int) -> None:
    assert blocks_needed(prompt, sampling, replica_info("r0"), 32) == blocks


@given(st.integers(1, 255), st.integers(1, 64), st.integers(1, 4096))
def test_the_estimate_never_refuses_a_lone_request(prompt: int, choices: int, expected: int) -> None:
    blocks = blocks_needed(prompt, SamplingOptions(n=choices), replica_info("r0"), expected)
    assert 1 <= blocks <= 100
