"""The last stage's sampling noise: the same as the first stage drafts with.

Relies on (vLLM 0.32, model runner V1): ``input_batch.generators`` maps rows to generators, moves them with their rows,
and is what the sampler reads when it samples.
"""

from typing import Any

import torch
from vllm.v1.core.sched.output import SchedulerOutput

from services.workers.sampling_noise import request_seed, token_seed


class TokenSeeds:
    """The seed of the token that a step samples for a request, or that is drafted for it: the same on both stages."""

    def __init__(self, runner: Any, generation: int) -> None:
        self._runner = runner
        self._generation = generation

    def of(self, plan: SchedulerOutput, request_id: str) -> int:
        """``request_id`` is one of the step's requests, with all of its tokens so far in this step or before."""
        state = self._runner.requests[request_id]
        index = state.num_computed_tokens + plan.num_scheduled_tokens[request_id] - state.num_prompt_tokens
        return token_seed(request_seed(state.sampling_params.seed, request_id, self._generation), index)


class SharedNoise:
    """Gives every sampling row the generator state that its place in its answer asks for."""

    def __init__(self, runner: Any, generation: int) -> None:
        self._runner = runner
        self._seeds = TokenSeeds(runner, generation)

    def prepare(self, plan: SchedulerOutput) -> None:
        """Before the step's tokens are sampled, after its forward pass."""
        batch = self._runner.input_batch
        for row, request_id in enumerate(batch.req_ids):
            if batch.temperature_cpu[row] <= 0:
                continue
            generator = batch.generators.setdefault(row, torch.Generator(device=self._runner.device))
            generator.manual_seed(self._seeds.of(plan, request_id))
