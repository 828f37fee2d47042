"""What speculative parallelism does inside a stage: run-ahead inputs, drafts, rows left out, shared sampling noise.

All of it works on the model runner's own books between vLLM's calls; nothing of vLLM is replaced. The scheduler
decides everything that matters (``vllm_sp_scheduler``): a stage only ever leaves out rows whose results the scheduler
will drop, those without a draft on every stage, those with a wrong one on the last.
"""

from pathlib import Path
from typing import Any

import torch
from forerun.stage.v1 import service_pb2 as pb
from vllm.config import VllmConfig
from vllm.sequence import IntermediateTensors
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import ModelRunnerOutput

from services.workers.place import StagePlace
from services.workers.verdicts import Verdicts
from services.workers.vllm_arrived_rows import ArrivedRows
from services.workers.vllm_drafter import Drafter
from services.workers.vllm_shared_noise import SharedNoise
from services.workers.vllm_step_inputs import StepInputs, leave_out
from services.workers.vllm_stream_tap import StreamTap


class Speculation:
    """One stage's part: the first drafts, all but the last run ahead, the last samples with shared noise."""

    def __init__(self, config: VllmConfig, runner: Any, place: StagePlace, tap: StreamTap | None) -> None:
        """After the weights are loaded and before KV caches are made. Raises ``ConfigError``."""
        self._runner = runner
        self._drafter: Drafter | None = None
        self._inputs: StepInputs | None = None
        self._noise: SharedNoise | None = None
        self._verdicts: Verdicts | None = None
        self._rows = pb.SpeculatedRows()
        self._sent_tokens: dict[str, int] = {}
        if tap is not None and place.is_first:
            self._drafter = Drafter(config, runner, Path(place.draft_adapter), place.generation, tap)
        if place.is_last:
            self._noise = SharedNoise(runner, place.generation)
            self._verdicts = Verdicts()
        else:
            self._inputs = StepInputs(runner, is_first=place.is_first)

    def before_forward(
        self, plan: SchedulerOutput, speculation: pb.Speculation, received: pb.SpeculatedRows | None
    ) -> None:
        """Completes the plan's inputs and takes rows out of it that need not run.

        Args:
            plan: the step; changed in place.
            speculation: what the scheduler says of it.
            received: what the stage before says of it; None on the first stage.
        """
        if self._drafter is not None:
            drafted = set(speculation.drafted_request_ids)
            entered = self._drafter.enter(plan, drafted)
            received = pb.SpeculatedRows(left_out_request_ids=drafted - entered.keys(), drafts=entered)
        self._rows = received = received or pb.SpeculatedRows()
        leave_out(self._runner, plan, set(received.left_out_request_ids))
        self._sent_tokens = dict(plan.num_scheduled_tokens)
        if self._verdicts is not None:
            leave_out(self._runner, plan, self._verdicts.stale(plan, received.drafts))
        if self._inputs is not None:
            self._inputs.prepare(plan, received.drafts)

    def arrived(self, tensors: dict[str, torch.Tensor]) -> IntermediateTensors:
        """What the stage before has sent, for the rows that this one runs."""
        return ArrivedRows(tensors, list(self._rows.request_ids), self._sent_tokens, self._runner.input_batch)

    def rows(self, plan: SchedulerOutput) -> pb.SpeculatedRows:
        """What the next stage must know of the step that has just run."""
        rows = pb.SpeculatedRows(left_out_request_ids=self._rows.left_out_request_ids, drafts=self._rows.drafts)
        if plan.total_num_scheduled_tokens:
            rows.request_ids.extend(self._runner.input_batch.req_ids)
        return rows

    def draft(self, plan: SchedulerOutput, speculation: pb.Speculation) -> list[pb.Draft]:
        """Drafts what the plan asks for, after its forward pass; nothing on stages behind the first."""
        return [] if self._drafter is None else self._drafter.draft(plan, speculation)

    def before_sampling(self, plan: SchedulerOutput) -> None:
        """Sets the sampling noise; the last stage only."""
        if self._noise is not None:
            self._noise.prepare(plan)

    def after_sampling(self, output: ModelRunnerOutput) -> None:
        """Remembers what was sampled, for the verdicts; the last stage only."""
        if self._verdicts is not None:
            self._verdicts.sampled(output)
