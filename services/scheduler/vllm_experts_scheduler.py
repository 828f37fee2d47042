"""Speculation in blocks (APEX): who drafts for a request's next step, how many tokens, and what became of them.

Lives in vLLM's engine-core process, on replicas of one stage. When a step has come back, every request in it gets its
next block chosen; the neural drafter, if anybody wants it, drafts then (``vllm_lazy_drafter``), and the drafts of all
experts enter vLLM's scheduler as its own would (design section 6).

Relies on (vLLM 0.32): the engine core calls ``take_draft_token_ids`` and ``update_draft_token_ids`` after every step
that ran, when ``update_from_output`` has seen its tokens; ``dynamic_sd_lookup`` is the number of tokens to draft by
batch size, and with it new requests are not padded to a full block; drafts are verified whoever made them, as certain
ones unless draft probabilities are kept, which Forerun never configures.
"""

import time
from collections.abc import Container, Mapping
from typing import Any

from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.engine import EngineCoreOutputs
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

from services.common.expert import Expert
from services.common.expert_profiles import PROFILES
from services.common.types import RoutedExpert
from services.scheduler.apex.block import Block
from services.scheduler.apex.live_blocks import LiveBlocks, Verified, VerifyingStep, Wish
from services.scheduler.apex.policies import make_policy
from services.scheduler.block_writer import BlockWriter
from services.scheduler.experts_metrics import ExpertsMetrics
from services.scheduler.vllm_sampling import DRAFT_TOKENS_ARG, EXPERT_ARG, PROFILE_ARG, ROUTED_ARG
from services.scheduler.vllm_scheduler import ForerunScheduler


class ExpertsScheduler(ForerunScheduler):
    """Forerun's scheduler with drafts for every request from the expert, and as deep, as the policy chooses."""

    def __init__(self, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(vllm_config, *args, **kwargs)
        experts = self._settings.experts
        if experts is None:
            raise ValueError("ExpertsScheduler without experts")
        # The stage's drafter waits for an order; vLLM's own number of drafts is 0 for every batch.
        self.dynamic_sd_lookup = [0] * (self.max_num_running_reqs + 1)
        self._blocks = LiveBlocks(experts, make_policy(experts))
        self._experts_metrics = ExpertsMetrics(self._registry, experts.experts, experts.deepest)
        self._experts_metrics.watch(self._registry, lambda: self._blocks.policy.odds_factors)
        self._block_writer = None
        if experts.record is not None:
            source = f"{self._settings.replica_id}-{self._settings.generation}"
            self._block_writer = BlockWriter(experts.record, source, self._registry)
        self._ordered_s: float | None = None
        """When the neural drafter was ordered to draft, on the monotonic clock."""

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        """As before; requests that have ended since the last step are forgotten."""
        output = super().schedule(throttle_prefills)
        for request_id in output.finished_req_ids:
            self._blocks.ended(request_id)
        return output

    def update_from_output(self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput) -> Any:
        """Closes the step's blocks and chooses the next ones; the executor reads from the plan how deep to draft."""
        in_blocks = self._accepted(scheduler_output, model_runner_output)
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        tokens = _tokens(outputs)
        blocks = self._close(in_blocks, tokens, scheduler_output, model_runner_output)
        _count_what_was_kept(outputs, blocks)
        self._grow(in_blocks, tokens, scheduler_output)
        depth = self._blocks.choose(self._rooms(scheduler_output))
        scheduler_output.forerun_draft_depth = depth
        self._ordered_s = time.monotonic() if depth else None
        return outputs

    def update_draft_token_ids(self, draft_token_ids: DraftTokenIds) -> None:
        """vLLM's, for the drafts of all experts; those that break a grammar are left out there."""
        seconds = 0.0
        if self._ordered_s is not None:
            seconds = time.monotonic() - self._ordered_s
            self._experts_metrics.drafted(seconds)
        neural = dict(zip(draft_token_ids.req_ids, draft_token_ids.draft_token_ids, strict=True))
        drafts = self._blocks.drafts(neural, seconds)
        super().update_draft_token_ids(DraftTokenIds(list(drafts), list(drafts.values())))

    def shutdown(self) -> None:
        """As before; then what is recorded is written."""
        super().shutdown()
        if self._block_writer is not None:
            self._block_writer.close()

    def _preempt_request(self, request: Request, *args: Any, **kwargs: Any) -> None:
        self._blocks.preempted(request.request_id)
        super()._preempt_request(request, *args, **kwargs)

    def _accepted(self, plan: SchedulerOutput, output: ModelRunnerOutput) -> dict[str, int]:
        """Accepted drafts of each block in the step; before vLLM's update, which cuts the lists where answers stop."""
        sampled = dict(zip(output.req_ids, output.sampled_token_ids, strict=True))
        return {
            request_id: len(sampled[request_id]) - 1
            for request_id in plan.num_scheduled_tokens
            if self._blocks.has_block(request_id) and sampled.get(request_id)
        }

    def _close(
        self,
        accepted: Mapping[str, int],
        tokens: Mapping[str, list[int]],
        plan: SchedulerOutput,
        output: ModelRunnerOutput,
    ) -> dict[str, Block]:
        drafts = plan.scheduled_spec_decode_tokens
        verified = {
            request_id: Verified(len(drafts.get(request_id, ())), count, tokens.get(request_id, []))
            for request_id, count in accepted.items()
        }
        times = getattr(output, "forerun_stage_times", None)
        seconds = 0.0 if not times or times[-1] is None else times[-1].model_ms / 1e3
        step = VerifyingStep(len(plan.num_scheduled_tokens), plan.total_num_scheduled_tokens, seconds)
        record = getattr(plan, "forerun_record", None)
        blocks = self._blocks.close(verified, step)
        for request_id, block in blocks.items():
            self._experts_metrics.closed(block)
            if self._block_writer is not None:
                self._block_writer.put(request_id, block)
            if record is not None and block.choice.depth:
                self._recorder.verified(request_id, record, block)
        return blocks

    def _grow(self, in_blocks: Container[str], tokens: Mapping[str, list[int]], plan: SchedulerOutput) -> None:
        """Requests that got a token outside of a block: their first one, or one after they had been preempted."""
        for request_id in plan.num_scheduled_tokens:
            request = self.requests.get(request_id)
            new = tokens.get(request_id)
            if request_id in in_blocks or request is None or request.is_finished() or not new:
                continue
            if request_id in self._blocks:
                self._blocks.extend(request_id, new)
            else:
                self._blocks.begin(
                    request_id,
                    request.prompt_token_ids or [],
                    list(request.output_token_ids),
                    request.max_tokens or 0,
                    wish_of(request.sampling_params),
                )

    def _rooms(self, plan: SchedulerOutput) -> dict[str, int]:
        """Draft tokens that fit, for each request of the step that goes on to its next block."""
        rooms = {}
        for request_id in plan.num_scheduled_tokens:
            request = self.requests.get(request_id)
            if request is None or request_id not in self._blocks or request.status is not RequestStatus.RUNNING:
                continue
            if request.is_prefill_chunk:
                continue
            left = (request.max_tokens or 0) - request.num_output_tokens
            rooms[request_id] = min(left, self.max_model_len - request.num_tokens) - 1
        return rooms


def wish_of(sampling: SamplingParams | None) -> Wish:
    """What a request's options say of speculation.

    Under ``min_p`` and ``logit_bias`` vLLM cannot judge drafts; such a request runs plainly (``vllm_plain_options``).
    """
    if sampling is None:
        return Wish()
    extra = sampling.extra_args or {}
    expert, routed, profile = extra.get(EXPERT_ARG), extra.get(ROUTED_ARG), extra.get(PROFILE_ARG)
    return Wish(
        None if expert is None else Expert(expert),
        extra.get(DRAFT_TOKENS_ARG),
        can_draft=sampling.min_p == 0 and not sampling.logit_bias,
        routed=None if routed is None else RoutedExpert(*routed),
        waste_price=None if profile is None else PROFILES[profile].waste_price,
    )


def _count_what_was_kept(outputs: dict[int, EngineCoreOutputs], blocks: Mapping[str, Block]) -> None:
    """Takes drafts behind an answer's end out of the request's count.

    Upstream gap (vLLM 0.32): drafts are counted as accepted before the answer is cut where it stops.
    tests/e2e/test_experts_schedules.py fails when upstream counts them after that.
    """
    for each in (each for some in outputs.values() for each in some.outputs):
        block = blocks.get(each.request_id)
        if block is not None and each.spec_decode_metrics is not None and block.drafted and block.kept < block.accepted:
            each.spec_decode_metrics.histogram[block.accepted] -= 1
            each.spec_decode_metrics.histogram[block.kept] += 1


def _tokens(outputs: dict[int, EngineCoreOutputs]) -> dict[str, list[int]]:
    """What each request got, from what an update of the scheduler returned."""
    return {each.request_id: each.new_token_ids for some in outputs.values() for each in some.outputs}
