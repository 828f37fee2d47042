"""The last stage's sampling noise: the same as the first stage drafts with.

Relies on (vLLM 0.32, model runner V1): ``input_batch.generators`` maps rows to generators, moves them with their rows,
and is what the sampler reads when it samples.
"""

from typing import Any

import torch
from vllm.v1.core.sched.output import SchedulerOutput

from services.workers.sampling_noise import request_seed, token_seed


class SharedNoise:
    """Gives every sampling row the generator state that its place in its answer asks for."""

    def __init__(self, runner: Any, generation: int) -> None:
        self._runner = runner
        self._generation = generation
        self._seeds: dict[str, int] = {}

    def prepare(self, plan: SchedulerOutput) -> None:
        """Before the step's tokens are sampled, after its forward pass."""
        for request_id in plan.finished_req_ids:
            self._seeds.pop(request_id, None)
        batch = self._runner.input_batch
        for row, request_id in enumerate(batch.req_ids):
            if batch.temperature_cpu[row] <= 0:
                continue
            state = self._runner.requests[request_id]
            if request_id not in self._seeds:
                self._seeds[request_id] = request_seed(state.sampling_params.seed, request_id, self._generation)
            index = state.num_computed_tokens + plan.num_scheduled_tokens[request_id] - state.num_prompt_tokens
            generator = batch.generators.setdefault(row, torch.Generator(device=self._runner.device))
            generator.manual_seed(token_seed(self._seeds[request_id], index))
