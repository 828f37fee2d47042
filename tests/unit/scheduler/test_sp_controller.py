"""The controller speculates where its own measurements say that it pays, and finds out when they change."""

import pytest

from services.scheduler.sp_controller import (
    DECIDE_EVERY_STEPS,
    LEARNING_DROP,
    LEARNING_STEPS,
    LEARNING_VERDICTS,
    PROBE_EVERY_STEPS,
    PROBE_STEPS,
    Reason,
    SpController,
    StageTime,
)


class Replica:
    """Two stages of 10 ms and ``ms_per_row`` a row, drafts of 2 ms, on which ``controller`` decides."""

    def __init__(self, controller: SpController, ms_per_row: float = 0.1) -> None:
        self.controller = controller
        self.ms_per_row = ms_per_row

    def run(self, steps: int, batch: int, acceptance: float) -> list[Reason]:
        reasons = []
        for step in range(steps):
            reasons.append(self.controller.decide(batch))
            ahead = reasons[-1].speculates
            rows = batch if ahead else max(1, batch // 2)
            model_ms = 10 + self.ms_per_row * rows
            times = [StageTime(rows, model_ms, 2.0 if ahead else 0.0), StageTime(rows, model_ms, 0.0)]
            self.controller.observe_step(times)
            if ahead:
                for index in range(4):
                    self.controller.observe_draft(0.5, hit=(step * 4 + index) % 100 < acceptance * 100, ran=True)
        return reasons


def test_it_learns_before_it_decides() -> None:
    reasons = Replica(SpController(2, always=False)).run(LEARNING_STEPS, batch=8, acceptance=0.9)
    assert set(reasons) == {Reason.PROBE, Reason.COMPARE}
    assert reasons.count(Reason.PROBE) * 4 >= LEARNING_VERDICTS


@pytest.mark.parametrize(
    ("acceptance", "ms_per_row", "reason"),
    [
        (0.8, 0.1, Reason.PAYS),
        (0.05, 0.1, Reason.DOES_NOT_PAY),
        # Compute-bound: a step of twice the rows costs nearly twice as much.
        (0.6, 5.0, Reason.DOES_NOT_PAY),
    ],
)
def test_it_settles_on_what_pays(acceptance: float, ms_per_row: float, reason: Reason) -> None:
    replica = Replica(SpController(2, always=False), ms_per_row)
    assert replica.run(LEARNING_STEPS + 200, 16, acceptance)[-1] is reason


def test_a_probe_finds_out_that_drafts_have_become_good() -> None:
    replica = Replica(SpController(2, always=False))
    assert replica.run(LEARNING_STEPS + 200, 16, 0.05)[-1] is Reason.DOES_NOT_PAY
    later = replica.run(2 * PROBE_EVERY_STEPS, 16, 0.9)
    assert Reason.PROBE in later
    assert later[-1] is Reason.PAYS


@pytest.mark.parametrize(
    ("acceptance", "mostly", "probe"),
    [(0.05, Reason.DOES_NOT_PAY, Reason.PROBE), (0.9, Reason.PAYS, Reason.COMPARE)],
)
def test_a_probe_that_shows_nothing_new_ends(acceptance: float, mostly: Reason, probe: Reason) -> None:
    replica = Replica(SpController(2, always=False))
    replica.run(LEARNING_STEPS + 200, 16, acceptance)
    reasons = replica.run(4 * PROBE_EVERY_STEPS, 16, acceptance)
    assert reasons.count(probe) == 4 * PROBE_STEPS
    assert reasons.count(mostly) == len(reasons) - 4 * PROBE_STEPS


def test_always_means_always() -> None:
    replica = Replica(SpController(2, always=True), ms_per_row=5.0)
    assert set(replica.run(400, 16, 0.0)) == {Reason.FORCED}


def learn(controller: SpController, ms_per_row: float, drafts: int = 1000) -> None:
    """Drafts that are right as often as they are confident, and stages whose rows cost ``ms_per_row``."""
    for index in range(drafts):
        confidence = index * 7919 % drafts / drafts
        controller.observe_draft(confidence, hit=index * 104729 % drafts / drafts < confidence, ran=True)
    for step in range(LEARNING_STEPS):
        rows = 8 + step % 8
        controller.observe_step([StageTime(rows, 10 + ms_per_row * rows, 0.0)] * 2)


def drop_after(controller: SpController, steps: int = DECIDE_EVERY_STEPS) -> float:
    for _ in range(steps):
        controller.decide(16)
    return controller.drop_fraction


def test_drafts_are_dropped_where_rows_cost() -> None:
    cheap, dear = SpController(2, always=True), SpController(2, always=True)
    learn(cheap, ms_per_row=0.0)
    learn(dear, ms_per_row=2.0)
    assert drop_after(cheap) == 0.0
    assert drop_after(dear) >= 0.2


def test_a_fraction_that_is_given_is_kept() -> None:
    controller = SpController(2, always=True, drop_fraction=0.1)
    learn(controller, ms_per_row=2.0)
    assert drop_after(controller) == 0.1


def test_before_something_is_known_steps_of_different_rows_are_tried() -> None:
    controller = SpController(2, always=True)
    learn(controller, ms_per_row=2.0, drafts=LEARNING_VERDICTS - 1)
    tried = [drop_after(controller) for _ in range(8)]
    assert sorted(tried) == [0.0] * 4 + [LEARNING_DROP] * 4
    given = SpController(2, always=True, drop_fraction=0.1)
    assert {drop_after(given) for _ in range(8)} == {0.1}


def test_the_fraction_stays_where_a_change_promises_next_to_nothing() -> None:
    controller = SpController(2, always=True)
    learn(controller, ms_per_row=2.0)
    chosen = drop_after(controller)
    for index in range(20):
        controller.observe_draft(0.3, hit=index % 2 == 0, ran=False)
    assert {drop_after(controller, 1) for _ in range(200)} == {chosen}


def test_dropped_drafts_count_for_the_choice_but_not_for_the_acceptance() -> None:
    controller = SpController(2, always=True)
    for hit in (True, False):
        controller.observe_draft(0.9, hit=True, ran=True)
        controller.observe_draft(0.1, hit=hit, ran=False)
    assert controller.acceptance == 1.0
