"""Asks the predictor of remaining lengths beside the steps. Whatever becomes of it, no step waits and none fails."""

import asyncio
from collections.abc import Callable

import grpc
import grpc.aio
import structlog
from forerun.predictor.v1 import service_pb2 as predictor_pb
from forerun.predictor.v1 import service_pb2_grpc
from forerun.stage.v1 import service_pb2 as pb

from services.workers.length_states import LengthStates
from services.workers.metrics import StageMetrics

TIMEOUT_S = 0.25
"""A later answer would say little of where the requests are then."""
CLOSE_TIMEOUT_S = 1.0

_log = structlog.get_logger(__name__)


class LengthClient:
    """Made and closed on the event loop; ``ask`` is called from the model thread. One call at a time."""

    def __init__(
        self,
        channel: grpc.aio.Channel,
        target_fingerprint: str,
        layer: int,
        metrics: StageMetrics,
        deliver: Callable[[pb.RemainingLengths], None],
    ) -> None:
        """``deliver`` gets the answers, on the event loop."""
        self._channel = channel
        self._stub = service_pb2_grpc.PredictorServiceStub(channel)
        self._target_fingerprint = target_fingerprint
        self._layer = layer
        self._metrics = metrics
        self._deliver = deliver
        self._loop = asyncio.get_running_loop()
        self._call: asyncio.Task[None] | None = None
        self._is_failing = False

    def ask(self, states: LengthStates) -> None:
        """Returns at once."""
        self._loop.call_soon_threadsafe(self._begin, states)

    async def close(self) -> None:
        """Gives up what is under way."""
        if self._call is not None:
            self._call.cancel()
            await asyncio.wait([self._call], timeout=CLOSE_TIMEOUT_S)
        await self._channel.close()

    def _begin(self, states: LengthStates) -> None:
        if self._call is not None and not self._call.done():
            self._count("busy")
            return
        self._call = asyncio.create_task(self._ask(states))

    async def _ask(self, states: LengthStates) -> None:
        request = predictor_pb.PredictRemainingRequest(
            target_fingerprint=self._target_fingerprint,
            layer=self._layer,
            states=states.states,
            answer_tokens=states.answer_tokens,
        )
        try:
            answer = await self._stub.PredictRemaining(request, timeout=TIMEOUT_S)
            lengths = _lengths(states, answer)
        except (grpc.aio.AioRpcError, ValueError) as error:
            self._failed(error)
            return
        if self._is_failing:
            self._is_failing = False
            _log.info("the predictor answers again")
        self._count("answered")
        self._deliver(lengths)

    def _failed(self, error: Exception) -> None:
        self._count("failed")
        if not self._is_failing:
            # Once an outage.
            self._is_failing = True
            why = f"{error.code().name}: {error.details()}" if isinstance(error, grpc.aio.AioRpcError) else str(error)
            _log.warning("the predictor does not answer; forecasts go on without it", reason=why)

    def _count(self, result: str) -> None:
        self._metrics.length_calls.labels(result).inc()


def _lengths(states: LengthStates, answer: predictor_pb.PredictRemainingResponse) -> pb.RemainingLengths:
    """Raises ``ValueError`` for an answer that is not one chance for each row and threshold."""
    width = len(answer.thresholds)
    if not width or len(answer.probabilities) != width * len(states.request_ids):
        raise ValueError(
            f"{len(answer.probabilities)} chances for {len(states.request_ids)} rows and {width} thresholds"
        )
    return pb.RemainingLengths(
        thresholds=answer.thresholds,
        lengths=[
            pb.RemainingLength(
                request_id=request_id,
                answer_tokens=tokens,
                within=answer.probabilities[row * width : (row + 1) * width],
            )
            for row, (request_id, tokens) in enumerate(zip(states.request_ids, states.answer_tokens, strict=True))
        ],
    )
