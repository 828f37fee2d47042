"""The real scheduler without speculation over a fake model, for property tests.

The engine's own loop is imitated: up to ``stages`` steps in flight, outputs applied in order.
"""

from collections import deque
from collections.abc import Callable
from typing import Any

from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

from services.scheduler.engine_core_settings import TENANT_HEADER
from services.scheduler.vllm_scheduler import ForerunScheduler
from tests.e2e.schedules import build_scheduler


def carry_out(
    events: list[tuple[str, int, int]], scheduler: Any, add: Callable[[str, int, int], None], turn: Callable[[], None]
) -> dict[str, int]:
    """What ``schedules.events`` drew; returns the tokens that each request wants, -1 for those that were aborted."""
    wanted: dict[str, int] = {}
    for kind, first, second in events:
        if kind == "add":
            name = f"r{len(wanted):03}"
            wanted[name] = second
            add(name, first, second)
        elif kind == "abort" and wanted:
            name = f"r{first % len(wanted):03}"
            scheduler.finish_requests([name], RequestStatus.FINISHED_ABORTED)
            wanted[name] = -1
        else:
            for _ in range(first):
                turn()
    return wanted


class PlainPipeline:
    """The scheduler and ``stages`` steps in flight over a model that says token 7 to everything."""

    def __init__(
        self, config: Any, stages: int, blocks: int, hasher: Callable[[Request], list[Any]] | None = None
    ) -> None:
        """``hasher``: of blocks, for the prefix cache; None: there is none."""
        self._hasher = hasher
        self.scheduler = build_scheduler(ForerunScheduler, config, blocks)
        self.stages = stages
        self.in_flight: deque[SchedulerOutput] = deque()
        self.decodes_per_step: list[tuple[int, int]] = []
        self.tokens: dict[str, int] = {}
        self.computed = 0
        """Tokens of all steps so far."""

    def add(self, name: str, prompt_tokens: int, max_tokens: int, priority: int = 0, tenant: str = "") -> None:
        sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
        prompt, headers = list(range(prompt_tokens)), {TENANT_HEADER: tenant}
        request = Request(
            name, prompt, sampling, None, priority=priority, block_hasher=self._hasher, trace_headers=headers
        )
        self.scheduler.add_request(request)
        self.tokens[name] = 0

    def turn(self) -> None:
        """One turn of the engine's loop: fill the pipeline, then apply the oldest step."""
        while len(self.in_flight) < self.stages and self.scheduler.has_requests():
            decoding = [request for request in self.scheduler.running if not request.is_prefill_chunk]
            names = {request.request_id for request in decoding}
            output = self.scheduler.schedule()
            self.in_flight.append(output)
            scheduled = sum(name in names for name in output.num_scheduled_tokens)
            self.decodes_per_step.append((scheduled, len(decoding)))
            if not output.num_scheduled_tokens:
                break
        if self.in_flight:
            self._apply(self.in_flight.popleft())

    def _apply(self, output: SchedulerOutput) -> None:
        self.computed += output.total_num_scheduled_tokens
        names = list(output.num_scheduled_tokens)
        sampled = [[7] if self._samples(name) else [] for name in names]
        result = ModelRunnerOutput(names, {name: index for index, name in enumerate(names)}, sampled)
        for outputs in self.scheduler.update_from_output(output, result).values():
            for each in outputs.outputs:
                self.tokens[each.request_id] += len(each.new_token_ids)

    def _samples(self, name: str) -> bool:
        request = self.scheduler.requests.get(name)
        return request is not None and request.num_computed_tokens >= request.num_tokens
