"""Acceptance by confidence, from counts."""

import pytest

from services.common.acceptance_curve import AcceptanceCurve


def test_shares_are_cut_out_of_bins() -> None:
    bins = [(10.0, 0.0), (0.0, 0.0), (30.0, 15.0), (60.0, 60.0)]
    assert AcceptanceCurve.from_bins(bins, 1).by_quantile == pytest.approx((0.75,))
    # The first half: ten wrong ones, thirty of which half are right, ten right ones.
    assert AcceptanceCurve.from_bins(bins, 2).by_quantile == pytest.approx((0.5, 1.0))
    assert AcceptanceCurve.from_bins(bins, 10).by_quantile == pytest.approx((0.0, 0.5, 0.5, 0.5, 1, 1, 1, 1, 1, 1))


def test_without_drafts_there_is_no_curve() -> None:
    with pytest.raises(ValueError, match="none were counted"):
        AcceptanceCurve.from_bins([(0.0, 0.0)], 4)
