"""The forecast that a replica publishes."""

import math

from hypothesis import given
from hypothesis import strategies as st

from services.scheduler.ledger_source import FORECAST_TOKENS, RequestBlocks, forecast_peak

BLOCK = 16


def request(tokens: int, left: int) -> RequestBlocks:
    return RequestBlocks("r", "", math.ceil(tokens / BLOCK), tokens, left)


def test_an_idle_replica_expects_what_it_holds() -> None:
    assert forecast_peak(3, [], BLOCK) == 3


def test_growth_is_rounded_up_per_request() -> None:
    # 16 tokens fill a block; one more token needs another, for each request.
    assert forecast_peak(2, [request(16, 1), request(16, 1)], BLOCK) == 4


def test_growth_stops_at_the_horizon_and_at_the_request_s_own_limit() -> None:
    assert forecast_peak(1, [request(16, 10_000)], BLOCK) == 1 + FORECAST_TOKENS // BLOCK
    assert forecast_peak(1, [request(15, 1)], BLOCK) == 1


@given(st.lists(st.tuples(st.integers(1, 500), st.integers(0, 500)), max_size=20))
def test_a_forecast_never_shrinks_and_is_bounded(pairs: list[tuple[int, int]]) -> None:
    requests = [request(tokens, left) for tokens, left in pairs]
    held = sum(each.held for each in requests)
    peak = forecast_peak(held, requests, BLOCK)
    assert held <= peak <= held + len(requests) * (FORECAST_TOKENS // BLOCK + 1)
