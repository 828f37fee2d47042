"""A pipeline of stages without an engine, which plays one request's steps to a recorder as the schedulers would."""

from collections import deque
from dataclasses import dataclass

from services.common.row_kind import RowKind
from services.scheduler.pipeline_recorder import FinishedTrace, PipelineRecorder
from services.scheduler.sp_block import BlockEnd
from services.scheduler.sp_controller import StageTime
from services.scheduler.step_record import Row, StepRecord

MS = 1_000_000
REQUEST = "r"
TRACE_ID = "ab" * 16
TRACEPARENT = f"00-{TRACE_ID}-{'cd' * 8}-01"
START_NS = 1_000_000 * MS


@dataclass
class _InFlight:
    step: StepRecord
    times: list[StageTime | None]


class PipelinePlay:
    """Each stage takes ``stage_ms`` a step; the first one drafts for ``draft_ms`` more."""

    def __init__(self, stages: int = 2, max_blocks: int = 8, stage_ms: float = 10.0, draft_ms: float = 2.0) -> None:
        self.emitted: list[FinishedTrace] = []
        self.recorder = PipelineRecorder(self.emitted.append, max_blocks)
        self.stages = stages
        self._stage_ms, self._draft_ms = stage_ms, draft_ms
        self._free_ns = [START_NS] * stages
        self._back_ns = START_NS
        self._in_flight: deque[_InFlight] = deque()
        self._number = 0
        self.recorder.begin(REQUEST, TRACEPARENT)

    def prompt(self, tokens: int) -> None:
        """The whole prompt in one step."""
        self._plan(Row(RowKind.PREFILL, 0, is_draft=False, samples=True), tokens)

    def token(self, position: int) -> None:
        """A sampled token enters."""
        self._plan(Row(RowKind.VERIFIED, position, is_draft=False, samples=True), 1)

    def draft(self, position: int) -> None:
        """A draft enters."""
        self._plan(Row(RowKind.UNJUDGED, position, is_draft=True, samples=True), 1)

    def others(self) -> None:
        """A step without the request."""
        self._plan(None, 1)

    def back(self, *, began: bool = True, ran: bool = True) -> None:
        """The oldest step comes back. ``began``: the first stage had the request's row; ``ran``: the last one."""
        done = self._in_flight.popleft()
        self._number += 1
        self._back_ns = max(time.ended_ns for time in done.times if time is not None)
        first, last = ({REQUEST} if took_part else set() for took_part in (began, ran))
        self.recorder.returned(done.step, self._number, done.times, began=first, ran=last)

    def hit(self, confidence: float = 0.9) -> None:
        """The oldest step comes back, and the draft ahead of it was right."""
        self.back()
        self.recorder.judged(REQUEST, None, confidence)

    def fail(self, end: BlockEnd, confidence: float | None = 0.3) -> None:
        """The oldest step comes back, and its block ends."""
        self.back()
        self.recorder.judged(REQUEST, end, confidence)

    def end(self) -> None:
        """The request ends; what is in flight comes back."""
        self.recorder.ended([REQUEST])
        while self._in_flight:
            self.back()

    @property
    def finished(self) -> FinishedTrace:
        (finished,) = self.emitted
        return finished

    def _plan(self, row: Row | None, tokens: int) -> None:
        scheduled = {"other": 1} if row is None else {REQUEST: tokens, "other": 1}
        step = self.recorder.planned(scheduled, lambda _: row)  # type: ignore[arg-type, return-value]
        ready, times = self._back_ns if len(self._in_flight) >= self.stages - 1 else START_NS, []
        for stage in range(self.stages):
            draft_ms = self._draft_ms if stage == 0 else 0.0
            began = max(ready, self._free_ns[stage])
            times.append(StageTime(2, self._stage_ms, draft_ms, began))
            ready = began + round(self._stage_ms * MS)
            self._free_ns[stage] = times[-1].ended_ns
        self._in_flight.append(_InFlight(step, list(times)))


def play_everything(max_blocks: int = 8, stages: int = 2) -> PipelinePlay:
    """Two stages: a prompt of 5, a block that misses, one whose draft is dropped, one that the end cuts short.

    Tokens 5, 6 and 7 come of the first block, 8 of the second, 9 and 10 of the third.
    """
    play = PipelinePlay(stages, max_blocks)
    play.prompt(5)
    play.draft(5)
    play.hit()
    play.draft(6)
    play.hit(0.8)
    play.draft(7)
    play.fail(BlockEnd.MISS)
    play.token(7)
    play.back()  # the wrong draft, in vain
    play.draft(8)
    play.fail(BlockEnd.DROPPED, 0.1)
    play.token(8)
    play.back(began=False, ran=False)
    play.draft(9)
    play.hit()
    play.draft(10)
    play.back()
    play.end()
    return play
