"""What the predictor counts of its answers."""

from typing import Any

import numpy as np
from forerun.predictor.v1 import service_pb2 as pb

from services.predictor.metrics import PredictorMetrics
from services.predictor.model import RemainingLengthModel
from services.predictor.registry import ModelRegistry
from services.predictor.servicer import PredictorServicer
from tests.support.small_predictor import make_predictor_config, random_tensors

ROWS = 50
STATES = np.random.default_rng(0).normal(size=(ROWS, 64)).astype("<f2")


async def test_rows_are_counted_by_the_shortest_threshold_that_they_reach() -> None:
    cut_offs = (0.9, 0.2, 0.8, 0.7, 1.0)
    config = make_predictor_config(cut_offs=cut_offs)
    model, metrics = RemainingLengthModel(config, random_tensors(config)), PredictorMetrics()
    servicer = PredictorServicer(ModelRegistry([model]), metrics, max_rows=ROWS)
    request = pb.PredictRemainingRequest(
        target_fingerprint=config.target_fingerprint, layer=2, states=STATES.tobytes(), answer_tokens=range(ROWS)
    )
    context: Any = None
    for _ in range(2):
        await servicer.PredictRemaining(request, context)
    expected: dict[str, int] = {}
    for row in model.chances(STATES, np.arange(ROWS)):
        reached = [
            tokens for tokens, chance, cut in zip(config.thresholds, row, cut_offs, strict=True) if chance >= cut
        ]
        name = str(reached[0]) if reached else "none"
        expected[name] = expected.get(name, 0) + 2
    assert len(expected) > 1
    counted = {
        name: metrics.registry.get_sample_value("forerun_predictor_within_total", {"tokens": name}) for name in expected
    }
    assert counted == expected
    assert sum(expected.values()) == 2 * ROWS
