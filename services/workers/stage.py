"""What a stage is to the code that drives it: the model's part, or a synthetic device in its place."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

import torch
from forerun.stage.v1 import service_pb2 as pb
from vllm.v1.core.sched.output import GrammarOutput, SchedulerOutput
from vllm.v1.outputs import ModelRunnerOutput

from services.workers.length_states import LengthStates
from services.workers.place import StagePlace


class StageSpeculation(Protocol):
    """A stage's part of speculative parallelism; see ``vllm_speculation.Speculation``."""

    def before_forward(
        self, plan: SchedulerOutput, speculation: pb.Speculation, received: pb.SpeculatedRows | None
    ) -> None:
        """Completes the plan's inputs and takes out of it what need not run."""

    def rows(self, plan: SchedulerOutput) -> pb.SpeculatedRows:
        """What the next stage must know of the step that has just run."""

    def draft(self, plan: SchedulerOutput, speculation: pb.Speculation) -> list[pb.Draft]:
        """Drafts what the plan asks for, after its forward pass; nothing on stages behind the first."""

    def before_sampling(self, plan: SchedulerOutput) -> None:
        """Sets the sampling noise; the last stage only."""

    def after_sampling(self, output: ModelRunnerOutput) -> None:
        """Remembers what was sampled; the last stage only."""


class Stage(Protocol):
    """See ``vllm_stage.ModelStage``, which says what each of these promises. One thread builds it and calls it."""

    @property
    def place(self) -> StagePlace: ...
    @property
    def fingerprint(self) -> str: ...
    @property
    def speculation(self) -> StageSpeculation | None: ...
    @property
    def device(self) -> torch.device: ...
    @property
    def device_name(self) -> str: ...
    @property
    def largest_activation_bytes(self) -> int: ...
    @property
    def target_fingerprint(self) -> str: ...
    def load(self) -> None: ...
    def call(self, method: str, arguments: list[Any]) -> Any: ...
    def forward(
        self, plan: SchedulerOutput, hidden: dict[str, torch.Tensor] | None
    ) -> dict[str, torch.Tensor] | ModelRunnerOutput | None: ...
    def sample(self, grammar: GrammarOutput | None) -> ModelRunnerOutput: ...
    def draft(self, depth: int) -> list[tuple[str, list[int]]]: ...
    def length_states(self, plan: SchedulerOutput, queries: Sequence[pb.LengthQuery]) -> LengthStates | None: ...
    def shutdown(self) -> None: ...


StageBuilder: TypeAlias = Callable[[StagePlace, str], Stage]
"""From the stage's place and vLLM's engine arguments as JSON. Raises for arguments that cannot work."""
