"""The spans of the blocks that experts drafted for one request. Pure.

A block's span begins with its drafting and ends with the step that verified it. Times are the stage's own clock; of
drafting, which ends right before, only its length is known.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from services.common import trace_names as names
from services.scheduler.apex.block import Block
from services.scheduler.span_plan import AttributeValue, SpanPlan
from services.scheduler.step_record import StepRecord


@dataclass(frozen=True, slots=True)
class VerifiedBlock:
    """A block with the step that verified it."""

    step: StepRecord
    block: Block


@dataclass(slots=True)
class ExpertTally:
    """Sums over a request's blocks that had drafts asked for."""

    blocks: int = 0
    drafted: int = 0
    accepted: int = 0
    emitted: int = 0
    experts: set[str] = field(default_factory=set)

    def add(self, block: Block) -> None:
        """One more."""
        self.blocks += 1
        self.drafted += block.drafted
        self.accepted += block.kept
        self.emitted += block.emitted
        self.experts.add(block.choice.expert.value)


def expert_spans(request_id: str, blocks: Sequence[VerifiedBlock], tally: ExpertTally) -> Iterator[SpanPlan]:
    """The sum, and each block in ``blocks``, which may be fewer than the tally's; nothing without a block."""
    spans = [span for each in blocks if (span := _block_span(request_id, each)) is not None]
    if not spans:
        return
    yield SpanPlan(
        names.SPAN_SPEC_SUMMARY,
        spans[0].start_ns,
        spans[-1].end_ns,
        {
            names.REQUEST_ID: request_id,
            names.SPEC_METHOD: ", ".join(sorted(tally.experts)),
            names.SPEC_BLOCKS: tally.blocks,
            names.SPEC_BLOCKS_LEFT_OUT: tally.blocks - len(blocks),
            names.SPEC_DRAFTED: tally.drafted,
            names.SPEC_ACCEPTED: tally.accepted,
            names.SPEC_EMITTED: tally.emitted,
        },
    )
    yield from spans


def _block_span(request_id: str, verified: VerifiedBlock) -> SpanPlan | None:
    """None when the stage's times are not known."""
    step, block = verified.step, verified.block
    if (time := step.stage(len(step.stages) - 1)) is None:
        return None
    choice = block.choice
    attributes: dict[str, AttributeValue] = {
        names.REQUEST_ID: request_id,
        names.SPEC_METHOD: choice.expert.value,
        names.SPEC_BLOCK_INDEX: block.index,
        names.SPEC_DEPTH: choice.depth,
        names.SPEC_DRAFTED: block.drafted,
        names.SPEC_ACCEPTED: block.kept,
        names.SPEC_EMITTED: block.emitted,
        names.SPEC_REASON: choice.why.value,
        names.SPEC_BATCH_SIZE: block.requests,
    }
    if not block.is_censored:
        attributes[names.SPEC_FIRST_REJECTED] = block.accepted + 1
    if choice.expected_accepted is not None:
        attributes[names.SPEC_EXPECTED_ACCEPTED] = round(choice.expected_accepted, 3)
    if choice.scores:
        attributes[names.SPEC_SCORES] = [
            f"{expert}:{depth}={score:.4g}" for (expert, depth), score in choice.scores.items()
        ]
    numbers: dict[str, AttributeValue] = {names.STAGE: 0, names.STEP_NUMBERS: [step.number]}
    verify = SpanPlan(
        names.SPAN_SPEC_VERIFY, time.began_ns, time.ended_ns, {**numbers, names.BUSY_SECONDS: block.verify_s}
    )
    began = time.began_ns - int(block.draft_s * 1e9)
    drafts = (
        SpanPlan(names.SPAN_SPEC_DRAFT, began, time.began_ns, {names.STAGE: 0, names.DRAFT_SECONDS: block.draft_s}),
    )
    children = (*(drafts if choice.expert.is_neural else ()), verify)
    return SpanPlan(names.SPAN_SPEC_BLOCK, children[0].start_ns, time.ended_ns, attributes, children)
