"""One step of the pipeline as it is kept for traces: which of the traced requests took part, and each stage's time."""

from dataclasses import dataclass, field

from services.common.row_kind import RowKind
from services.scheduler.sp_controller import StageTime


@dataclass(slots=True, eq=False)
class Row:
    """A traced request's part of one step."""

    kind: RowKind
    """UNJUDGED for a draft whose verdict is still to come."""
    position: int
    """Of its first token in the request's text, prompt included."""
    is_draft: bool
    """Its input was the first stage's draft."""
    samples: bool
    """False while a prompt is prefilled in pieces."""
    is_emitted: bool = False
    """The request got the token that was sampled from it."""
    is_in_vain: bool = False
    """Rolled back, or the request ended, while it was in flight."""
    is_skipped: bool = False
    """The last stage knew that it was in vain, and left it out."""

    def kind_on(self, *, is_last: bool) -> RowKind:
        """What it was to a stage."""
        return RowKind.LEFT_OUT if is_last and self.is_skipped else self.kind


@dataclass(slots=True, eq=False)
class StepRecord:
    """One step; ``number`` and ``stages`` are known when it has come back."""

    requests: int
    rows: dict[str, Row] = field(default_factory=dict)
    """By request; traced requests only."""
    number: int = 0
    stages: list[StageTime | None] = field(default_factory=list)
    """By pipeline rank; None where a stage had not reported."""

    def stage(self, rank: int) -> StageTime | None:
        """What stage ``rank`` told; None when nothing is known."""
        return self.stages[rank] if rank < len(self.stages) else None
