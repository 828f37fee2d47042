"""One traced request while it runs: its rows in flight, its open block, and the blocks so far."""

from collections import deque

from services.common.row_kind import RowKind
from services.scheduler.apex.block import Block as ExpertBlock
from services.scheduler.expert_spans import ExpertTally, VerifiedBlock
from services.scheduler.lookahead.gatekeeper import Start
from services.scheduler.sp_block import Block, BlockEnd, Tally
from services.scheduler.step_record import Row, StepRecord

MAX_ADMISSIONS = 16
"""Kept of one request; it starts again after each preemption."""


class RequestTrace:
    """Fed by the recorder in the order of the engine's steps. Its memory is bounded by ``max_blocks``."""

    def __init__(self, request_id: str, traceparent: str, max_blocks: int) -> None:
        self.request_id = request_id
        self.traceparent = traceparent
        self.blocks: list[Block] = []
        """The first ``max_blocks``."""
        self.tally = Tally()
        """Of all blocks."""
        self.admissions: list[Start] = []
        """The first ``MAX_ADMISSIONS``; none where vLLM itself decides."""
        self.expert_blocks: list[VerifiedBlock] = []
        """The first ``max_blocks`` for which somebody drafted."""
        self.expert_tally = ExpertTally()
        """Of all of those."""
        self.first_step: int | None = None
        """Recorder's count of steps when the first row entered."""
        self._max_blocks = max_blocks
        self._in_flight: deque[Row] = deque()
        self._open: Block | None = None
        self._has_ended = False

    @property
    def is_complete(self) -> bool:
        """The request has ended and nothing of it is in flight."""
        return self._has_ended and not self._in_flight

    def admitted(self, start: Start) -> None:
        """It starts."""
        if len(self.admissions) < MAX_ADMISSIONS:
            self.admissions.append(start)

    def entered(self, step: StepRecord, row: Row) -> None:
        """A step with a row of the request was planned."""
        self._in_flight.append(row)
        if row.samples and not row.is_draft:
            self._open = Block()
        if self._open is not None and row.samples:
            self._open.rows.append((step, row))

    def returned(self, row: Row, *, began: bool, ran: bool) -> None:
        """The oldest row came back. ``began``: the first stage had it in its batch; ``ran``: the last one."""
        if not self._in_flight or self._in_flight[0] is not row:
            return  # of an aborted request of the same name
        self._in_flight.popleft()
        if not row.is_in_vain:
            row.is_emitted = row.samples
        elif not began:
            row.kind = RowKind.LEFT_OUT
        else:
            row.is_skipped = not ran
            self.tally.flushed += row.is_draft

    def judged(self, end: BlockEnd | None, confidence: float | None) -> None:
        """The verdict on the draft that has run ahead of the row that came back last; None: it was right."""
        if self._open is not None and confidence is not None:
            self._open.confidences.append(confidence)
        if end is None:
            self._in_flight[0].kind = RowKind.ACCEPTED
            return
        if end is BlockEnd.MISS:
            self._in_flight[0].kind = RowKind.MISSED
        self.rolled_back(end)

    def rolled_back(self, end: BlockEnd) -> None:
        """What is in flight will be thrown away, and the block ends."""
        for row in self._in_flight:
            row.is_in_vain = True
            if row.kind is RowKind.UNJUDGED:
                row.kind = RowKind.STALE
        self.closed(end)

    def closed(self, end: BlockEnd) -> None:
        """The open block ends; nothing happens without one."""
        block, self._open = self._open, None
        if block is None:
            return
        block.end = end
        tally = block.tally()
        if not tally.drafted and not tally.dropped:
            return  # a plain step
        tally.flushed = 0  # counted row by row as they come back
        self.tally.add(tally)
        if len(self.blocks) < self._max_blocks:
            self.blocks.append(block)

    def verified(self, step: StepRecord, block: ExpertBlock) -> None:
        """A step has verified a block of an expert's drafts."""
        self.expert_tally.add(block)
        if len(self.expert_blocks) < self._max_blocks:
            self.expert_blocks.append(VerifiedBlock(step, block))

    def ended(self) -> None:
        """The request has ended; what is in flight comes back in vain."""
        self._has_ended = True
        for row in self._in_flight:
            row.is_in_vain = True
        self.closed(BlockEnd.REQUEST_END)
