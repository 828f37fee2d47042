"""Blocks: the unit in which speculative parallelism is counted, alike in metrics and in spans.

A *block* is a run of one request's rows through the pipeline. It begins with a row whose input is verified (a sampled
token, or the end of the prompt); every further row's input is the draft made from the row before. It ends with the
first draft that is wrong or missing, or when nothing runs ahead of its last row. A run of which no draft was judged or
dropped is no block but a plain step.

Of a block, or of any number of blocks: **drafted** tokens ran ahead and were judged; **accepted** are those that the
verifier kept; **emitted** are the tokens that the request got from its rows, ``1 + accepted`` unless it ended first;
**dropped** drafts were left out; **flushed** are the drafted rows that ran in vain, if only on the stages before
the last: wrong ones, those behind a wrong one, and those in flight when the request ended.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from services.common.row_kind import RowKind
from services.scheduler.step_record import Row, StepRecord


class BlockEnd(StrEnum):
    """Why a block ended; the metric label and the span's reason."""

    MISS = "miss"
    """A draft was wrong."""
    DROPPED = "dropped"
    """A draft was left out for want of confidence."""
    NO_DRAFT = "no-draft"
    """The step before was planned without speculating."""
    NOT_AHEAD = "not-ahead"
    """Nothing had been planned ahead: no room in the step or the KV cache, the last token, or no speculating."""
    PREEMPTED = "preempted"
    REQUEST_END = "request-end"


@dataclass(slots=True)
class Tally:
    """What blocks add up to; see the module."""

    blocks: int = 0
    drafted: int = 0
    accepted: int = 0
    emitted: int = 0
    dropped: int = 0
    flushed: int = 0

    def add(self, other: "Tally") -> None:
        """Adds another's counts."""
        self.blocks += other.blocks
        self.drafted += other.drafted
        self.accepted += other.accepted
        self.emitted += other.emitted
        self.dropped += other.dropped
        self.flushed += other.flushed


@dataclass(slots=True, eq=False)
class Block:
    """One block of a traced request."""

    rows: list[tuple[StepRecord, Row]] = field(default_factory=list)
    confidences: list[float] = field(default_factory=list)
    """Of its drafts, the one that ended it included."""
    end: BlockEnd = BlockEnd.REQUEST_END

    def tally(self) -> Tally:
        """Its counts. Final when every row has come back; only ``flushed`` may still grow after the block's end."""
        kinds = [row.kind for _, row in self.rows]
        accepted = kinds.count(RowKind.ACCEPTED)
        return Tally(
            blocks=1,
            drafted=accepted + kinds.count(RowKind.MISSED),
            accepted=accepted,
            emitted=sum([row.is_emitted for _, row in self.rows]),
            dropped=int(self.end is BlockEnd.DROPPED),
            flushed=sum([row.is_draft and row.is_in_vain and row.kind is not RowKind.LEFT_OUT for _, row in self.rows]),
        )
