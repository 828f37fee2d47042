"""The gRPC door of the predictor: unpack, compute, pack. Computing takes about a millisecond, so it is done here."""

import time
from collections import Counter
from typing import Any, TypeAlias

import grpc.aio
import numpy as np
from forerun.predictor.v1 import service_pb2 as pb
from forerun.predictor.v1 import service_pb2_grpc

from services.common.errors import RequestEndedError
from services.common.outcome import Outcome
from services.predictor.convert import chances_to_proto, model_to_proto, rows_from_proto
from services.predictor.metrics import PredictorMetrics
from services.predictor.model import Floats
from services.predictor.model_config import RemainingLengthConfig
from services.predictor.registry import ModelRegistry

SERVICE_NAME = pb.DESCRIPTOR.services_by_name["PredictorService"].full_name

_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class PredictorServicer(service_pb2_grpc.PredictorServiceServicer):
    """``PredictorService`` over one registry."""

    def __init__(self, registry: ModelRegistry, metrics: PredictorMetrics, max_rows: int) -> None:
        self._registry = registry
        self._metrics = metrics
        self._max_rows = max_rows

    async def PredictRemaining(
        self, request: pb.PredictRemainingRequest, context: _Context
    ) -> pb.PredictRemainingResponse:
        began = time.perf_counter()
        try:
            model = self._registry.find(request.target_fingerprint, request.layer)
            states, answer_tokens = rows_from_proto(request, model.config.hidden_size, self._max_rows)
        except RequestEndedError as error:
            self._metrics.count_request(error.outcome)
            raise
        chances = model.chances(states, answer_tokens)
        self._metrics.answered(time.perf_counter() - began, len(answer_tokens), _within(model.config, chances))
        self._metrics.count_request(Outcome.STOP)
        return chances_to_proto(model.config, chances)

    async def ListModels(self, request: pb.ListModelsRequest, context: _Context) -> pb.ListModelsResponse:
        return pb.ListModelsResponse(models=[model_to_proto(model) for model in self._registry])


def _within(config: RemainingLengthConfig, chances: Floats) -> Counter[str]:
    """How many rows by the shortest threshold whose cut-off they reach; "none": they reach none."""
    reached = chances >= np.array(config.cut_offs, np.float32)
    shortest = np.where(reached.any(axis=1), reached.argmax(axis=1), len(config.thresholds))
    names = [*map(str, config.thresholds), "none"]
    return Counter({names[index]: int(count) for index, count in enumerate(np.bincount(shortest)) if count})
