"""The acceptance curve of the latest drafts."""

import pytest

from services.scheduler.recent_drafts import SHARE_DRAFTS, SHARES, WINDOW, RecentDrafts


def observe(drafts: RecentDrafts, count: int, hits_above: float) -> None:
    """``count`` drafts of evenly spread confidence, right where it is above ``hits_above``."""
    for index in range(count):
        confidence = index / count
        drafts.observe(confidence, hit=confidence >= hits_above)


def test_nothing_is_known_at_first() -> None:
    assert RecentDrafts().curve().by_quantile == (0.0,)


@pytest.mark.parametrize("count", [1, SHARE_DRAFTS, SHARE_DRAFTS * 2 - 1])
def test_of_a_handful_of_drafts_only_the_mean_is_told(count: int) -> None:
    drafts = RecentDrafts()
    observe(drafts, count, hits_above=0.5)
    assert drafts.curve().by_quantile == (pytest.approx(count // 2 / count),)


def test_shares_are_equal_and_the_least_confident_first() -> None:
    drafts = RecentDrafts()
    observe(drafts, SHARES * SHARE_DRAFTS, hits_above=0.3)
    assert drafts.curve().by_quantile == (0.0,) * 3 + (1.0,) * 7


def test_old_drafts_are_forgotten() -> None:
    drafts = RecentDrafts()
    observe(drafts, WINDOW, hits_above=2.0)
    observe(drafts, WINDOW, hits_above=0.0)
    assert drafts.curve().by_quantile == (1.0,) * SHARES
