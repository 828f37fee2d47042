"""Keeps what traced requests do in the pipeline, step by step, for their spans.

Lives in the engine core, on its one thread, between two steps: a step costs a few microseconds for each traced request
in it, and nothing when no request is traced. What is kept is bounded: the newest ``MAX_STEPS`` steps of the replica,
and of each live request its rows in flight and its first blocks.
"""

from collections import deque
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from services.scheduler.apex.block import Block
from services.scheduler.lookahead.gatekeeper import Start
from services.scheduler.request_trace import RequestTrace
from services.scheduler.sp_block import BlockEnd
from services.scheduler.sp_controller import StageTime
from services.scheduler.step_record import Row, StepRecord

MAX_STEPS = 512
"""A request's picture shows as many of its last steps."""


@dataclass(frozen=True, slots=True)
class FinishedTrace:
    """A traced request that is over."""

    request: RequestTrace
    steps: tuple[StepRecord, ...]
    """All steps of the replica while the request ran, its own and others', oldest first; at most ``MAX_STEPS``."""
    steps_before: int
    """Steps of the request's time that are not kept any more."""


class PipelineRecorder:
    """One per replica. ``emit`` gets every traced request when it is over, and must not block; None: none is traced."""

    def __init__(self, emit: Callable[[FinishedTrace], None] | None, max_blocks: int) -> None:
        self._emit = emit
        self._max_blocks = max_blocks
        self._live: dict[str, RequestTrace] = {}
        self._steps: deque[StepRecord] = deque(maxlen=MAX_STEPS)
        self._planned = 0

    @property
    def is_active(self) -> bool:
        """A traced request is live."""
        return bool(self._live)

    def begin(self, request_id: str, traceparent: str) -> None:
        """A traced request enters its first step, which ``planned`` will tell of."""
        if request_id in self._live:
            self._finish(self._live[request_id])  # aborted, and the client uses its name again
        if self._emit is not None:
            self._live[request_id] = RequestTrace(request_id, traceparent, self._max_blocks)

    def admitted(self, request_id: str, start: Start) -> None:
        """A request started, by a policy's decision; nothing happens for one that is not traced."""
        if request := self._live.get(request_id):
            request.admitted(start)

    def planned(self, scheduled: Mapping[str, int], row_of: Callable[[str], Row]) -> StepRecord:
        """A step was planned; its record is to be handed to ``returned``.

        Args:
            scheduled: tokens by request.
            row_of: what the step is to one request; asked for traced ones only.
        """
        step = StepRecord(len(scheduled))
        for request_id, request in self._live.items():
            if request_id in scheduled:
                if request.first_step is None:
                    request.first_step = self._planned
                step.rows[request_id] = row = row_of(request_id)
                request.entered(step, row)
        self._steps.append(step)
        self._planned += 1
        return step

    def returned(
        self,
        step: StepRecord,
        number: int,
        stages: Sequence[StageTime | None],
        *,
        began: Container[str],
        ran: Container[str],
    ) -> None:
        """A step has come back.

        Args:
            step: its record.
            number: as the stages know it.
            stages: their times.
            began: the requests that the first stage had in its batch.
            ran: those that the last one had.
        """
        step.number, step.stages = number, list(stages)
        for request_id, row in step.rows.items():
            if request := self._live.get(request_id):
                request.returned(row, began=request_id in began, ran=request_id in ran)
                self._emit_if_complete(request)

    def judged(self, request_id: str, end: BlockEnd | None, confidence: float | None) -> None:
        """See ``RequestTrace``; nothing happens for a request that is not traced."""
        if request := self._live.get(request_id):
            request.judged(end, confidence)

    def rolled_back(self, request_id: str, end: BlockEnd) -> None:
        """As ``judged``."""
        if request := self._live.get(request_id):
            request.rolled_back(end)

    def closed(self, request_id: str, end: BlockEnd) -> None:
        """As ``judged``."""
        if request := self._live.get(request_id):
            request.closed(end)

    def verified(self, request_id: str, step: StepRecord, block: Block) -> None:
        """A step that has come back has verified a block of an expert's drafts; as ``judged``."""
        if request := self._live.get(request_id):
            request.verified(step, block)

    def ended(self, request_ids: Iterable[str]) -> None:
        """Requests have ended. Their last rows may still be in flight."""
        for request_id in request_ids:
            if request := self._live.get(request_id):
                request.ended()
                self._emit_if_complete(request)

    def close(self) -> None:
        """Emits what is live: the replica stops."""
        for request in list(self._live.values()):
            request.ended()
            self._finish(request)

    def _emit_if_complete(self, request: RequestTrace) -> None:
        if request.is_complete:
            self._finish(request)

    def _finish(self, request: RequestTrace) -> None:
        del self._live[request.request_id]
        steps = 0 if request.first_step is None else self._planned - request.first_step
        kept = min(steps, len(self._steps))
        newest = islice(self._steps, len(self._steps) - kept, None)
        if self._emit is not None:
            self._emit(FinishedTrace(request, tuple(newest), steps_before=steps - kept))
