"""What the executor has asked of the stages and not been answered yet."""

import time
from concurrent.futures import Future
from dataclasses import dataclass, field

from forerun.stage.v1 import service_pb2 as pb
from vllm.v1.outputs import ModelRunnerOutput

from services.common import vllm_codec
from services.scheduler.sp_controller import StageTime


@dataclass
class PendingStep:
    """A step on its way: complete with the last stage's tokens and, under SP, the first stage's drafts."""

    drafts_due: bool
    future: Future[ModelRunnerOutput | None] = field(default_factory=Future)
    sent_s: float = field(default_factory=time.monotonic)
    output: ModelRunnerOutput | None = None
    drafts: dict[str, pb.Draft] = field(default_factory=dict)
    times: list[StageTime | None] = field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        return self.output is not None and not self.drafts_due

    def take(self, reply: pb.ExecuteResponse, stage: int, *, is_first: bool, is_last: bool) -> None:
        """A rank's reply, the first or the one that samples or another of ``stage``.

        Raises ``ValueError`` (msgspec's among them) for a reply that cannot be read."""
        spent = reply.times
        model_ms, draft_ms = (spent.busy_ns - spent.draft_ns) / 1e6, spent.draft_ns / 1e6
        self.times[stage] = StageTime(spent.tokens, model_ms, draft_ms, spent.began_unix_ns)
        if is_first:
            self.drafts = {draft.request_id: draft for draft in reply.drafts}
            self.drafts_due = False
        if is_last:
            self.output = vllm_codec.decode_model_runner_output(reply.model_runner_output)
        if self.is_complete:
            # ModelRunnerOutput has no field for them; the scheduler reads these attributes.
            self.output.forerun_drafts = self.drafts  # type: ignore[union-attr]
            self.output.forerun_stage_times = self.times  # type: ignore[union-attr]
            self.output.forerun_step = reply.step  # type: ignore[union-attr]


@dataclass
class PendingDrafts:
    """An order to the neural drafter on its way, answered by the rank that samples."""

    step: int
    future: Future[list[pb.DraftBlock]] = field(default_factory=Future)
    sent_s: float = field(default_factory=time.monotonic)
