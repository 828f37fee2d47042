"""The KV pool's expected use."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.scheduler.lookahead.answer_lengths import AnswerLengths
from services.scheduler.lookahead.audit import ForecastAudit
from services.scheduler.lookahead.forecast import HORIZON, Claim, Forecast, PoolState, earliest_safe
from services.scheduler.lookahead.pace import Pace

POOL = PoolState(capacity=100, used=0, block_size=16)


def certain(tokens: int, left: int, held: int = 0) -> Claim:
    """A request that gets exactly ``left`` more tokens."""
    return Claim(tokens, age=0, limit=left, at_least=left, held=held)


def forecast(*running: Claim, pool: PoolState = POOL) -> Forecast:
    return Forecast(pool, running, AnswerLengths(1000, 100), Pace())


def test_a_request_grows_block_by_block_and_then_leaves() -> None:
    blocks = forecast(certain(tokens=30, left=20)).blocks
    assert list(blocks[:4]) == [2, 2, 2, 3], "the 33rd token needs a third block"
    assert blocks[18] == 3
    assert blocks[19] == 4
    assert blocks[20] == 0
    assert len(blocks) == 2 * HORIZON + 1


def test_an_uncertain_request_counts_by_its_chance_to_be_there() -> None:
    lengths = AnswerLengths(1000, 100)
    claim = Claim(tokens=32, age=0, limit=500)
    blocks = Forecast(POOL, [claim], lengths, Pace()).blocks
    alive = float(lengths.survival(np.array([0]), np.array([500]), np.array([40]))[0, 0])
    assert blocks[40] == pytest.approx(alive * 5)


def test_tokens_come_at_the_measured_pace() -> None:
    pace = Pace()
    for _ in range(500):
        pace.stepped(tokens=4, rows=4, decoding=8, gained=4)
    blocks = Forecast(POOL, [certain(tokens=16, left=20)], AnswerLengths(1000, 100), pace).blocks
    assert pace.tokens_per_iteration == pytest.approx(0.5, rel=0.01)
    assert blocks[38] == 3
    assert blocks[42] == 0


def test_shared_blocks_count_once() -> None:
    both = [certain(tokens=160, left=200, held=10), certain(tokens=160, left=200, held=10)]
    assert forecast(*both, pool=PoolState(100, 12, 16)).blocks[0] == pytest.approx(12)


def test_groups_of_layers_multiply() -> None:
    assert forecast(certain(32, 10), pool=PoolState(100, 0, 16, groups=3)).blocks[0] == 6


def test_at_their_longest() -> None:
    assert forecast(certain(16, 16), Claim(tokens=1, age=0, limit=99)).at_their_longest(certain(16, 1)) == 2 + 7 + 2


def test_the_earliest_safe_iteration_is_when_somebody_leaves() -> None:
    running = forecast(certain(tokens=160, left=30))
    need = running.need(certain(tokens=160, left=200))
    assert earliest_safe(running.blocks, need, room=15) == 30
    assert earliest_safe(running.blocks, need, room=1000) == 0
    assert earliest_safe(running.blocks, need, room=5) == HORIZON


claims = st.builds(
    lambda tokens, age, limit, at_least: Claim(tokens, min(age, tokens), limit, min(at_least, limit), -(-tokens // 16)),
    st.integers(1, 600),
    st.integers(0, 100),
    st.integers(0, 300),
    st.integers(0, 300),
)


@given(running=st.lists(claims, max_size=8), candidate=claims, room=st.integers(1, 300))
def test_a_request_that_starts_at_the_safe_iteration_stays_within_the_room(
    running: list[Claim], candidate: Claim, room: int
) -> None:
    pool = PoolState(1000, sum(claim.held for claim in running), 16)
    outlook = forecast(*running, pool=pool)
    assert outlook.blocks[0] == pytest.approx(sum(claim.held for claim in running if claim.limit > 0), abs=len(running))
    need = outlook.need(candidate)
    delay = earliest_safe(outlook.blocks, need, room)
    window = outlook.blocks[delay : delay + HORIZON + 1] + need[: HORIZON + 1]
    assert delay == HORIZON or (window <= room).all()
    for sooner in range(delay):
        assert (outlook.blocks[sooner : sooner + HORIZON + 1] + need[: HORIZON + 1] > room).any()
    outlook.admit(candidate)
    assert len(outlook.running) == len(running) + 1


def test_an_audit_compares_peaks_and_adds_what_was_admitted() -> None:
    audit = ForecastAudit()
    assert audit.is_due
    outlook = forecast(certain(tokens=160, left=500, held=10))
    audit.start(outlook.blocks)
    ratios = []
    for iteration in range(HORIZON):
        if iteration == 10:
            audit.admitted(outlook.need(certain(tokens=32, left=500)))
        ratios.append(audit.observe(10 + iteration // 16 + (3 if iteration > 10 else 0)))
    assert ratios[:-1] == [None] * (HORIZON - 1)
    assert ratios[-1] == pytest.approx((14 + 5) / (13 + 3), abs=0.1)
    assert audit.is_due
