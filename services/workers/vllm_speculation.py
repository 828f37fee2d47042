"""What speculative parallelism does inside a stage: run-ahead inputs, drafts, rows left out, shared sampling noise.

All of it works on the model runner's own books between vLLM's calls; nothing of vLLM is replaced. The scheduler
decides everything that matters (``vllm_sp_scheduler``): a stage only ever leaves out rows whose results the scheduler
will drop.
"""

from pathlib import Path
from typing import Any

import torch
from forerun.stage.v1 import service_pb2 as pb
from vllm.config import VllmConfig
from vllm.v1.core.sched.output import SchedulerOutput

from services.workers.place import StagePlace
from services.workers.vllm_drafter import Drafter
from services.workers.vllm_shared_noise import SharedNoise
from services.workers.vllm_step_inputs import StepInputs, leave_out


class Speculation:
    """One stage's part: the first drafts, all but the last run ahead, the last samples with shared noise."""

    def __init__(self, config: VllmConfig, runner: Any, place: StagePlace) -> None:
        """After the weights are loaded and before KV caches are made. Raises ``ConfigError``."""
        self._runner = runner
        self._drafter: Drafter | None = None
        self._inputs: StepInputs | None = None
        self._noise: SharedNoise | None = None
        if place.is_first:
            self._drafter = Drafter(config, runner, Path(place.draft_adapter), place.generation)
        if place.is_last:
            self._noise = SharedNoise(runner, place.generation)
        else:
            self._inputs = StepInputs(runner, is_first=place.is_first)

    def before_forward(
        self, plan: SchedulerOutput, speculation: pb.Speculation, received: pb.PushActivationsRequest | None
    ) -> set[str]:
        """Completes the plan's inputs and takes rows out of it that need not run.

        Args:
            plan: the step; changed in place.
            speculation: what the scheduler says of it.
            received: what the stage before says of it; None on the first stage.

        Returns:
            The requests that were left out, which the next stage must be told.
        """
        drafted = set(speculation.drafted_request_ids)
        if self._drafter is not None:
            entered = self._drafter.enter(plan, drafted)
            left_out = drafted - entered.keys()
        else:
            left_out = set() if received is None else set(received.left_out_request_ids)
            # Only the first stage embeds tokens: here any value does.
            entered = dict.fromkeys(drafted - left_out, 0)
        leave_out(self._runner, plan, left_out)
        if self._inputs is not None:
            self._inputs.prepare(plan, entered)
        return left_out

    def draft(
        self, plan: SchedulerOutput, speculation: pb.Speculation, output: dict[str, torch.Tensor]
    ) -> list[pb.Draft]:
        """Drafts what the plan asks for; nothing on stages behind the first."""
        if self._drafter is None:
            return []
        return self._drafter.draft(plan, speculation, output)

    def before_sampling(self, plan: SchedulerOutput) -> None:
        """Sets the sampling noise; the last stage only."""
        if self._noise is not None:
            self._noise.prepare(plan)
