"""The report's arithmetic, the loss and the schedule, on numbers that can be checked by hand."""

import math

import numpy as np
import pytest
import torch

from services.common.training.distillation import draft_losses, position_weights
from services.common.training.schedule import learning_rate_share
from services.common.training.training_data import Batch
from services.workers.training.adapter.agreement import measure_agreement
from services.workers.training.adapter.evaluation import Drafts


def make_drafts() -> Drafts:
    """Ten greedy positions of two answers, and two sampled ones."""
    return Drafts(
        agrees=np.array([1, 1, 1, 1, 0, 1, 0, 1, 0, 0, 1, 0], dtype=bool),
        draftable=np.array([1, 1, 1, 1, 1, 1, 1, 1, 0, 1, 1, 1], dtype=bool),
        confidence=np.array([0.9, 0.8, 0.7, 0.6, 0.5, 0.95, 0.4, 0.3, 0.2, 0.1, 0.99, 0.98], dtype=np.float32),
        position=np.array([0, 1, 2, 3, 4, 0, 1, 2, 3, 300, 0, 1], dtype=np.int32),
        workload=np.repeat(["chat", "code", "chat"], [5, 5, 2]),
        greedy=np.repeat([True, False], [10, 2]),
    )


def test_agreement_overall_and_of_the_confident() -> None:
    report = measure_agreement(make_drafts())
    assert (report.overall.positions, report.overall.share) == (10, 0.6)
    # The two least confident (0.2 and 0.1) are left out; both were misses.
    assert (report.confident.positions, report.confident.share) == (8, 6 / 8)
    assert report.coverage == 0.9
    assert report.sampled is not None
    assert (report.sampled.positions, report.sampled.share) == (2, 0.5)


def test_agreement_by_what_it_depends_on() -> None:
    report = measure_agreement(make_drafts())
    assert {name: part.share for name, part in report.by_workload.items()} == {"chat": 0.8, "code": 0.4}
    assert {name: (part.positions, part.share) for name, part in report.by_position.items()} == {
        "0-0": (2, 1.0),
        "1-3": (6, 4 / 6),
        "4-15": (1, 0.0),
        "256-300": (1, 0.0),
    }
    assert [part.share for _, part in report.by_confidence] == [1, 1, 1, 1, 1, 0, 0, 1, 0, 0]
    assert [lowest for lowest, _ in report.by_confidence] == pytest.approx(
        [0.95, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1]
    )


def test_sampled_answers_alone_are_no_report() -> None:
    drafts = make_drafts()
    with pytest.raises(ValueError, match="no held-out answer was greedy"):
        measure_agreement(drafts.where(~drafts.greedy))


LOGITS = torch.tensor([[0.0, math.log(2.0), 0.0], [math.log(3.0), 0.0, 0.0]])
"""Probabilities 1/4, 1/2, 1/4 and 3/5, 1/5, 1/5."""
TARGET = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.8, 0.1]]).log()


def test_the_hard_loss_is_that_of_the_targets_likeliest_token() -> None:
    expected = [-math.log(1 / 4), -math.log(1 / 5)]
    assert draft_losses(LOGITS, TARGET, soft_share=0).tolist() == pytest.approx(expected)


def test_the_soft_loss_is_the_cross_entropy_with_the_targets_distribution() -> None:
    expected = [
        -(0.5 * math.log(1 / 4) + 0.3 * math.log(1 / 2) + 0.2 * math.log(1 / 4)),
        -(0.1 * math.log(3 / 5) + 0.8 * math.log(1 / 5) + 0.1 * math.log(1 / 5)),
    ]
    assert draft_losses(LOGITS, TARGET, soft_share=1).tolist() == pytest.approx(expected)


def test_the_two_losses_are_mixed() -> None:
    hard, soft, mixed = (draft_losses(LOGITS, TARGET, share) for share in (0, 1, 0.25))
    torch.testing.assert_close(mixed, 0.75 * hard + 0.25 * soft)


def test_prompts_teach_less_and_first_positions_nothing() -> None:
    batch = Batch(
        sequences=[],
        tokens=torch.zeros(7, dtype=torch.int64),
        states=torch.zeros(7, 4),
        last=torch.zeros(7, 4),
        lengths=[4, 3],
        starts=torch.tensor([1, 0, 0, 0, 1, 0, 0], dtype=torch.bool),
        answers=torch.tensor([2, 3, 5, 6]),
        labels=torch.zeros(4, dtype=torch.int64),
    )
    assert position_weights(batch, 0.25).tolist() == [0, 0.25, 1, 1, 0, 1, 1]


def test_the_learning_rate_warms_up_and_falls_along_half_a_cosine() -> None:
    shares = [learning_rate_share(step, 110, warmup_share=10 / 110, final_share=0.1) for step in range(110)]
    assert shares[:10] == pytest.approx([0.1 * (step + 1) for step in range(10)])
    assert shares[10] == 1.0
    assert shares[60] == pytest.approx(0.55)
    assert shares[109] == pytest.approx(0.1, abs=1e-3)
    assert shares[10:] == sorted(shares[10:], reverse=True)
