"""Predictor messages to arrays and back. Pure."""

import numpy as np
from forerun.predictor.v1 import service_pb2 as pb
from numpy.typing import NDArray

from services.common.errors import invalid
from services.predictor.model import Floats, RemainingLengthModel
from services.predictor.model_config import RemainingLengthConfig


def rows_from_proto(
    request: pb.PredictRemainingRequest, hidden_size: int, max_rows: int
) -> tuple[NDArray[np.float16], NDArray[np.int64]]:
    """States [rows, hidden] and answer tokens [rows]. Raises ``RequestEndedError`` naming the field at fault."""
    rows = len(request.answer_tokens)
    if not 1 <= rows <= max_rows:
        raise invalid("answer_tokens", f"{rows} rows, must be 1 to {max_rows}; send more calls")
    wanted = 2 * rows * hidden_size
    if len(request.states) != wanted:
        raise invalid(
            "states",
            f"{len(request.states)} bytes, must be {wanted}: {rows} rows of {hidden_size} half-precision values",
        )
    states = np.frombuffer(request.states, dtype="<f2").reshape(rows, hidden_size)
    if not np.isfinite(states).all():
        raise invalid("states", "holds values that are not finite")
    return states, np.array(request.answer_tokens, dtype=np.int64)


def chances_to_proto(config: RemainingLengthConfig, chances: Floats) -> pb.PredictRemainingResponse:
    """``chances``: [rows, thresholds]."""
    return pb.PredictRemainingResponse(thresholds=config.thresholds, probabilities=chances.ravel().tolist())


def model_to_proto(model: RemainingLengthModel) -> pb.PredictorModel:
    """For the list of models."""
    config = model.config
    return pb.PredictorModel(
        target=config.target,
        target_fingerprint=config.target_fingerprint,
        layer=config.layer,
        hidden_size=config.hidden_size,
        thresholds=config.thresholds,
        cut_offs=config.cut_offs,
    )
