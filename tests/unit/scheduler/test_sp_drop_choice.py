"""The share of dropped drafts that the controller chooses, against the best one on the simulated machine."""

from random import Random

import pytest

from services.common.acceptance_curve import AcceptanceCurve
from services.scheduler.recent_drafts import WINDOW
from services.scheduler.sp_controller import DECIDE_EVERY_STEPS, LEARNING_STEPS, SpController, StageTime
from services.scheduler.sp_pipeline import Latency, Pipeline, StaleRows, together
from services.scheduler.sp_simulation import simulate

GRID = (0.0, 0.15, 0.3, 0.5)
SIMULATED_ROWS = 6000
REPLICAS = 30


def linear(fixed_ms: float, ms_per_row: float) -> Latency:
    return lambda rows: fixed_ms + ms_per_row * rows


class Replica:
    """Random stages, drafts and batch; what is seen of them is random too."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        mean, tilt = random.uniform(0.3, 0.8), random.uniform(0.0, 0.6)
        rates = (mean + tilt * (index / 9 - 0.5) for index in range(10))
        self.curve = AcceptanceCurve(tuple(min(1.0, max(0.0, rate)) for rate in rates))
        ms_per_row = 10 ** random.uniform(-1, 1)
        self.stages = [
            linear(10 * random.uniform(0.8, 1.2), ms_per_row * random.uniform(0.8, 1.2))
            for _ in range(random.choice((2, 2, 3, 4)))
        ]
        self.draft = linear(random.uniform(0.5, 2.0), 0.1 * ms_per_row)
        self.batch = random.choice((2, 4, 8, 16, 32, 64))
        self.sharpness = random.uniform(0.2, 3.0)

    def chosen(self) -> float:
        """What a controller chooses that has watched it for a while."""
        controller = SpController(len(self.stages), always=True)
        for _ in range(WINDOW):
            quantile = self.random.random()
            hit = self.random.random() < self.curve.at(quantile)
            controller.observe_draft(quantile**self.sharpness, hit=hit, ran=True)
        for _ in range(4 * LEARNING_STEPS):
            rows = self.random.randint(max(1, self.batch // 2), self.batch)
            drafting = [self._noisy(self.draft(rows))] + [0.0] * (len(self.stages) - 1)
            times = [self._noisy(stage(rows)) for stage in self.stages]
            controller.observe_step([StageTime(rows, *each) for each in zip(times, drafting, strict=True)])
        for _ in range(DECIDE_EVERY_STEPS):
            controller.decide(self.batch)
        return controller.drop_fraction

    def tokens_per_s(self, drop: float) -> float:
        first, *others = self.stages
        pipeline = Pipeline((together(first, self.draft), *others), stale_rows=StaleRows.SKIP_LAST)
        return simulate(pipeline, self.batch, self.curve, drop, steps=SIMULATED_ROWS // self.batch).tokens_per_s

    def _noisy(self, ms: float) -> float:
        return ms * self.random.uniform(0.9, 1.1)


def regrets() -> list[float]:
    """What the choice loses against the best share of the grid, by replica."""
    lost = []
    for seed in range(REPLICAS):
        replica = Replica(seed)
        best = max(replica.tokens_per_s(drop) for drop in GRID)
        lost.append(1.0 - replica.tokens_per_s(replica.chosen()) / best)
    return lost


@pytest.mark.timeout(600)
def test_it_loses_no_more_than_noise_to_the_best_share() -> None:
    """Of random stages, drafts and batches. At so few rows a simulation is a per cent off by itself: at four times as
    many, of a hundred replicas one loses 3 % and the others less than 2."""
    lost = sorted(regrets())
    assert sum(lost) / REPLICAS < 0.003
    assert lost[int(0.9 * REPLICAS)] < 0.02
    assert lost[-1] < 0.035
