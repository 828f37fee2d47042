"""A stage's books right before a step whose inputs may be drafts.

Relies on (vLLM 0.32, model runner V1, ``async_scheduling`` off):

- the plan's ``num_computed_tokens`` counts every token that entered before this step, drafts included, so what a stage
  holds beyond it comes from a draft that was wrong;
- a stage that is not the last appends ``num_computed_tokens + len(new_token_ids) - num_tokens`` tokens to its books,
  and never rebuilds them when a request resumes;
- the last stage cuts its books to the plan's ``num_output_tokens`` by itself, and appends what it samples;
- a request that is not in ``num_scheduled_tokens`` leaves the persistent batch and keeps its books.
"""

from collections.abc import Mapping
from typing import Any

from vllm.v1.core.sched.output import SchedulerOutput


class StepInputs:
    """Sets a runner's books for run-ahead. One per stage that is not the last."""

    def __init__(self, runner: Any, *, is_first: bool) -> None:
        self._runner = runner
        self._is_first = is_first

    def prepare(self, plan: SchedulerOutput, drafted: Mapping[str, int]) -> None:
        """Cuts what was rolled back and enters the drafts.

        Args:
            plan: the step; its ``new_token_ids`` are completed.
            drafted: the tokens that the plan has no values for, by request.
        """
        cached = plan.scheduled_cached_reqs
        for index, request_id in enumerate(cached.req_ids):
            state = self._runner.requests[request_id]
            if request_id in cached.resumed_req_ids:
                # What the stage has may end in a draft.
                state.output_token_ids = cached.all_token_ids[request_id][state.num_prompt_tokens :]
                continue
            self._cut(state, request_id, cached.num_computed_tokens[index])
            if request_id in drafted:
                cached.new_token_ids[index] = [drafted[request_id]]

    def _cut(self, state: Any, request_id: str, computed: int) -> None:
        known = max(0, computed - state.num_prompt_tokens)
        if len(state.output_token_ids) > known:
            del state.output_token_ids[known:]
            row = self._runner.input_batch.req_id_to_index.get(request_id)
            if row is not None:
                self._runner.input_batch.num_tokens_no_spec[row] = state.num_prompt_tokens + known
        elif not self._is_first:
            # Only the first stage embeds tokens; here their number counts.
            state.output_token_ids.extend([0] * (known - len(state.output_token_ids)))


def leave_out(runner: Any, plan: SchedulerOutput, request_ids: set[str]) -> None:
    """Takes running requests out of a step; the blocks that the plan gives them are entered all the same."""
    if not request_ids:
        return
    cached = plan.scheduled_cached_reqs
    kept = []
    for index, request_id in enumerate(cached.req_ids):
        if request_id not in request_ids:
            kept.append(index)
            continue
        plan.total_num_scheduled_tokens -= plan.num_scheduled_tokens.pop(request_id)
        for held, new in zip(runner.requests[request_id].block_ids, cached.new_block_ids[index] or (), strict=False):
            held.extend(new)
    for name in ("req_ids", "new_token_ids", "new_block_ids", "num_computed_tokens", "num_output_tokens"):
        values = getattr(cached, name)
        setattr(cached, name, [values[index] for index in kept])
