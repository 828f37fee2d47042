"""Speculative parallelism (SP): running ahead of several stages on drafts, and back after a miss.

Lives in vLLM's engine-core process. Step *t* runs a request's token through the stages; the first stage drafts the
token that follows and takes it as the request's input of step *t + 1*, while later stages still work on *t*. When step
*t* comes back, its sampled token is compared with the draft: equal, and the request has gained a stage time; else
everything younger is rolled back, and the sampled token enters next (design section 4; papers/spexis section 4).

Relies on (vLLM 0.32): ``AsyncScheduler`` under ``async_scheduling=False`` schedules a request again with an output
placeholder while its last step is in flight, and sends stages the tokens that it knows; ``num_stale_output_tokens``
and ``drop_stale_output`` make ``update_from_output`` drop what a request has in flight, oldest first;
``max_concurrent_batches`` is the number of stages, so that a draft's predecessor is verified before a third step needs
it. ``_roll_back`` is the only place that writes vLLM's state.
"""

from collections.abc import Collection
from typing import Any

from forerun.stage.v1 import service_pb2 as pb
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request

from services.scheduler.sp_block import BlockEnd
from services.scheduler.sp_controller import Reason, SpController, StageTime
from services.scheduler.sp_metrics import SpMetrics
from services.scheduler.vllm_scheduler import ForerunScheduler


class SpScheduler(ForerunScheduler, AsyncScheduler):
    """Forerun's scheduler for replicas that speculate across their stages."""

    def __init__(self, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(vllm_config, *args, **kwargs)
        if vllm_config.scheduler_config.async_scheduling or self._settings.speculation is None:
            raise RuntimeError("speculative parallelism needs its settings, and vLLM's async_scheduling off")
        speculation = self._settings.speculation
        self._controller = SpController(
            self._stages,
            always=speculation.mode == "always",
            drop_fraction=None if speculation.drop_fraction == "auto" else speculation.drop_fraction,
        )
        self._context_lookup = speculation.context_lookup
        self._reason = Reason.FORCED
        self._sp_metrics = SpMetrics(self._registry, self._recorder, self._controller)

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        """vLLM's schedule; the plan tells the first stage which inputs are its drafts, and what to draft next."""
        self._reason = self._controller.decide(sum(not request.is_prefill_chunk for request in self.running))
        output = super().schedule(throttle_prefills)
        if output.num_scheduled_tokens:
            self._sp_metrics.planned(self._reason)
        self._sp_metrics.ended(output.finished_req_ids)
        output.forerun_speculation = pb.Speculation(
            drafted_request_ids=self._drafted_in(output),
            draft_request_ids=[id_ for id_ in output.num_scheduled_tokens if self._is_wanted(self.requests[id_])],
            drop_fraction=self._controller.drop_fraction,
            context_lookup=self._context_lookup,
        )
        return output

    def update_from_output(self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput) -> Any:
        """vLLM's update; then every new token is compared with the draft that has run ahead of it."""
        drafts: dict[str, pb.Draft] = getattr(model_runner_output, "forerun_drafts", {})
        self._observe(scheduler_output, getattr(model_runner_output, "forerun_stage_times", None))
        scheduled = scheduler_output.num_scheduled_tokens
        waited_for = {id_: self.requests[id_] for id_ in scheduled if self._is_waited_for(id_)}
        known = {id_: request.num_output_tokens for id_, request in waited_for.items()}
        in_vain = set(scheduler_output.forerun_speculation.drafted_request_ids) - waited_for.keys()
        # The first stage drafts for what it runs.
        self._sp_metrics.flushed(len(in_vain & drafts.keys()))
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        for request_id, request in waited_for.items():
            if request.num_output_tokens == known[request_id]:
                continue
            if request_id in self.requests and request.num_in_flight_tokens > 0:
                self._judge(request, drafts.get(request_id))
            else:
                self._sp_metrics.not_ahead(request_id, has_ended=request_id not in self.requests)
        return outputs

    def _preempt_request(self, request: Request, timestamp: float, drop_stale_output: bool = False) -> None:
        # Of several tokens in flight only the oldest has a verified input; vLLM would deliver them all.
        drop = drop_stale_output or request.num_output_placeholders > 1
        super()._preempt_request(request, timestamp, drop_stale_output=drop)
        if request.drop_stale_output and request.num_stale_output_tokens:
            self._sp_metrics.preempted(request.request_id)

    def _hold_back(self) -> None:
        """Requests that may not speculate wait for their verified token; a crowd that does is not split."""
        for request in self.running:
            if request.num_output_placeholders > 0 and not self._may_speculate(request):
                self._skip_next_step(request)
        if not self._reason.speculates:
            super()._hold_back()

    def _judge(self, request: Request, draft: pb.Draft | None) -> None:
        """The verdict on the draft that is the input of the request's next step in flight.

        None: the step before was planned without speculating, so the first stage has left the next one's row out.
        """
        end = BlockEnd.NO_DRAFT
        if draft is not None:
            is_hit = draft.token_id == request.output_token_ids[-1]
            self._sp_metrics.compared(draft.confidence, is_right=is_hit)
            self._controller.observe_draft(draft.confidence, hit=is_hit, ran=not draft.dropped)
            if is_hit and not draft.dropped:
                self._sp_metrics.accepted(request.request_id, draft.confidence)
                return
            end = BlockEnd.DROPPED if draft.dropped else BlockEnd.MISS
        self._sp_metrics.not_accepted(request.request_id, end, None if draft is None else draft.confidence)
        self._roll_back(request)

    def _observe(self, step: SchedulerOutput, times: list[StageTime | None] | None) -> None:
        rows = len(step.num_scheduled_tokens)
        if times is not None and rows and step.total_num_scheduled_tokens == rows:
            self._controller.observe_step(times)

    @staticmethod
    def _roll_back(request: Request) -> None:
        """Like a preemption that keeps its blocks: what is in flight will be dropped, the sampled token enters next.

        Blocks stay, since the next step rewrites the same slots; unverified tokens never were in the prefix cache.
        """
        request.num_stale_output_tokens = request.num_in_flight_tokens
        request.drop_stale_output = True
        request.num_output_placeholders = 0
        request.num_computed_tokens = request.num_tokens - 1

    def _is_wanted(self, request: Request) -> bool:
        return not request.is_prefill_chunk and self._may_speculate(request)

    def _may_speculate(self, request: Request) -> bool:
        """A grammar's mask for a step needs every token before it.

        With two stages one step is in flight when the next is planned, and vLLM puts the mask off until it is back
        (``pending_structured_output_tokens``), while the stages compute. With more, others are in flight even then.
        """
        return self._reason.speculates and (self._stages == 2 or not request.use_structured_output)

    def _is_waited_for(self, request_id: str) -> bool:
        """False when what the request has in flight will be thrown away."""
        request = self.requests.get(request_id)
        return request is not None and not (request.num_stale_output_tokens and request.drop_stale_output)

    def _drafted_in(self, output: SchedulerOutput) -> Collection[str]:
        """Requests whose one token in this step is not known to the scheduler."""
        cached = output.scheduled_cached_reqs
        return [id_ for id_, tokens in zip(cached.req_ids, cached.new_token_ids, strict=True) if not tokens]
