"""Runs step plans on the model thread: wait for activations, forward, hand on, sample, reply.

Order is everything here. Plans come in step order; a plan's forward pass and its sampling stay adjacent; the
activations leave before drafting, so that the next stage starts as early as it can, and else together with the reply.
After a failed step the stage answers every further plan with the same error, since its KV cache is behind.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import structlog
import torch
from forerun.stage.v1 import service_pb2 as pb
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import ModelRunnerOutput

from services.common import vllm_codec
from services.workers import activations
from services.workers.activations import ActivationInbox
from services.workers.convert import error_to_proto
from services.workers.length_states import LengthStates
from services.workers.metrics import StageMetrics
from services.workers.spans import StageSpans
from services.workers.stage import Stage

_log = structlog.get_logger(__name__)


class SendActivations(Protocol):
    """Hands activations to the next stage without blocking: ``at_once``, or as soon as ``run`` has returned."""

    def __call__(self, message: pb.PushActivationsRequest, *, at_once: bool) -> None: ...


@dataclass
class _Clock:
    """Splits the model thread's time into idle, busy (model) and overhead, in nanoseconds."""

    free_since: int
    idle: int = 0
    workless: int = 0
    """The part of idle in which there was nothing to do."""
    began_unix: int = 0
    busy: int = 0
    draft: int = 0
    tokens: int = 0

    def times(self) -> pb.StepTimes:
        total = time.perf_counter_ns() - self.free_since
        overhead = max(0, total - self.idle - self.busy)
        return pb.StepTimes(
            idle_ns=self.idle,
            busy_ns=self.busy,
            overhead_ns=overhead,
            draft_ns=self.draft,
            tokens=self.tokens,
            began_unix_ns=self.began_unix,
            bubble_ns=max(0, self.idle - self.workless),
        )


@dataclass
class _Unsampled:
    """A step that has run and whose grammar is still to come."""

    step: int
    clock: _Clock
    output: ModelRunnerOutput | None
    """Not None when there is nothing to sample, since all of its rows were left out."""


class StepRunner:
    """Not thread-safe: lives on the model thread."""

    def __init__(
        self,
        stage: Stage,
        generation: int,
        inbox: ActivationInbox,
        send: SendActivations,
        metrics: StageMetrics,
        spans: StageSpans,
        activation_timeout_s: float,
    ) -> None:
        self._stage = stage
        self._generation = generation
        self._inbox = inbox
        self._send = send
        self._metrics = metrics
        self._spans = spans
        self._activation_timeout_s = activation_timeout_s
        self.predict: Callable[[LengthStates], None] | None = None
        """Asks the predictor of remaining lengths without blocking; None where there is none."""
        self._failure: pb.StepError | None = None
        self._awaiting_grammar: _Unsampled | None = None
        self._free_since = time.perf_counter_ns()
        self.steps = 0

    def run(self, request: pb.ExecuteRequest) -> pb.ExecuteResponse | None:
        """One plan. None when its reply comes later, with the plan that carries the step's grammar."""
        started = time.perf_counter_ns()
        waited = started - self._free_since
        clock = _Clock(self._free_since, idle=waited, workless=waited if request.after_idle else 0)
        reply = pb.ExecuteResponse(step=request.step, generation=self._generation)
        try:
            self._refuse_foreign(request)
            if self._failure is not None:
                reply.error.CopyFrom(self._failure)
                return reply
            output = self._step(request, reply, clock)
        except Exception as error:  # noqa: BLE001  whatever failed, the scheduler and the next stage must hear of it
            self._failure = error_to_proto(error)
            reply.error.CopyFrom(self._failure)
            self._poison_next_stage(request.step)
            return reply
        if self._awaiting_grammar is not None:
            return None
        if output is not None and self._stage.place.reports_output:
            reply.model_runner_output = vllm_codec.encode_model_runner_output(output)
        reply.times.CopyFrom(clock.times())
        self._free_since = time.perf_counter_ns()
        self._metrics.observe_step(reply.times)
        return reply

    def _step(self, request: pb.ExecuteRequest, reply: pb.ExecuteResponse, clock: _Clock) -> ModelRunnerOutput | None:
        if request.HasField("draft"):
            self._draft_blocks(request.draft, reply, clock)
            return None
        if not request.scheduler_output:
            return self._sample_late(request, clock)
        plan = vllm_codec.decode_scheduler_output(request.scheduler_output)
        is_planned = plan.total_num_scheduled_tokens > 0
        received = self._receive(request.step, clock) if is_planned and not self._stage.place.is_first else None
        self._prepare(request, plan, received)
        clock.tokens = plan.total_num_scheduled_tokens
        output = self._forward(plan, received, clock)
        if is_planned and not self._stage.place.is_last:
            self._hand_on(request.step, plan, output)
        if isinstance(output, dict):
            # After the activations have left: the next stage must not wait for it.
            self._draft(request, reply, plan, clock)
        self._ask_lengths(request, plan)
        self._observe(request, plan, clock)
        if not self._stage.place.is_last:
            return None
        # Something came out already where nothing ran: the plan was empty, or all of its rows were left out.
        sampled = output if isinstance(output, ModelRunnerOutput) else None
        if request.sampling == pb.ExecuteRequest.SAMPLING_LATER:
            self._awaiting_grammar = _Unsampled(request.step, clock, sampled)
            return None
        return sampled or self._sample(request.grammar_output, clock)

    def _prepare(
        self, request: pb.ExecuteRequest, plan: SchedulerOutput, received: pb.PushActivationsRequest | None
    ) -> None:
        """Completes a plan that runs ahead. An empty one may still say who has finished."""
        if self._stage.speculation is not None:
            rows = None if received is None else received.speculated
            self._stage.speculation.before_forward(plan, request.speculation, rows)

    def _hand_on(
        self, step: int, plan: SchedulerOutput, output: dict[str, torch.Tensor] | ModelRunnerOutput | None
    ) -> None:
        """Sends the next stage what it needs; no tensors when all rows were left out."""
        message = pb.PushActivationsRequest(step=step, generation=self._generation)
        if isinstance(output, dict):
            message.tensors.extend(activations.to_proto(output))
        if self._stage.speculation is not None:
            message.speculated.CopyFrom(self._stage.speculation.rows(plan))
        # The next stage must not wait for drafts.
        self._send(message, at_once=self._stage.place.is_first and self._stage.speculation is not None)

    def _forward(
        self, plan: SchedulerOutput, received: pb.PushActivationsRequest | None, clock: _Clock
    ) -> dict[str, torch.Tensor] | ModelRunnerOutput | None:
        hidden = None
        if received is not None and plan.total_num_scheduled_tokens:
            hidden = activations.from_proto(list(received.tensors), self._stage.device)
        if plan.total_num_scheduled_tokens:
            clock.began_unix = time.time_ns()
        began = time.perf_counter_ns()
        output = self._stage.forward(plan, hidden)
        if self._stage.speculation is not None and output is None:
            self._stage.speculation.before_sampling(plan)
        clock.busy += time.perf_counter_ns() - began
        return output

    def _draft(
        self, request: pb.ExecuteRequest, reply: pb.ExecuteResponse, plan: SchedulerOutput, clock: _Clock
    ) -> None:
        if self._stage.speculation is None:
            return
        began = time.perf_counter_ns()
        reply.drafts.extend(self._stage.speculation.draft(plan, request.speculation))
        clock.draft = time.perf_counter_ns() - began
        clock.busy += clock.draft

    def _draft_blocks(self, order: pb.DraftOrder, reply: pb.ExecuteResponse, clock: _Clock) -> None:
        """What the neural drafter says; a pipeline's last stage has it."""
        began = time.perf_counter_ns()
        drafted = self._stage.draft(order.depth)
        if self._stage.place.reports_output:
            reply.draft_blocks.extend(pb.DraftBlock(request_id=each, token_ids=tokens) for each, tokens in drafted)
        clock.draft = time.perf_counter_ns() - began
        clock.busy += clock.draft

    def _ask_lengths(self, request: pb.ExecuteRequest, plan: SchedulerOutput) -> None:
        if self.predict is None or not request.length_queries:
            return
        try:
            if (states := self._stage.length_states(plan, request.length_queries)) is not None:
                self.predict(states)
        except Exception:  # noqa: BLE001  learned parts fail open: the step itself went well
            _log.warning("remaining lengths are not predicted any more", exc_info=True)
            self.predict = None

    def _receive(self, step: int, clock: _Clock) -> pb.PushActivationsRequest:
        began = time.perf_counter_ns()
        message = self._inbox.take(step, self._activation_timeout_s)
        clock.idle += time.perf_counter_ns() - began
        return message

    def _sample(self, grammar: bytes, clock: _Clock) -> ModelRunnerOutput:
        began = time.perf_counter_ns()
        output = self._stage.sample(vllm_codec.decode_grammar_output(grammar) if grammar else None)
        if self._stage.speculation is not None:
            self._stage.speculation.after_sampling(output)
        clock.busy += time.perf_counter_ns() - began
        return output

    def _sample_late(self, request: pb.ExecuteRequest, clock: _Clock) -> ModelRunnerOutput | None:
        if not self._stage.place.is_last:
            return None
        waiting, self._awaiting_grammar = self._awaiting_grammar, None
        if waiting is None or waiting.step != request.step:
            raise RuntimeError(f"a grammar came for step {request.step}, which does not wait for one")
        earlier, output = waiting.clock, waiting.output or self._sample(request.grammar_output, clock)
        # The wait for the grammar is time in which the stage had nothing to do.
        clock.busy += earlier.busy
        clock.tokens, clock.workless, clock.began_unix = earlier.tokens, earlier.workless, earlier.began_unix
        clock.idle = max(0, time.perf_counter_ns() - clock.free_since - clock.busy)
        return output

    def _observe(self, request: pb.ExecuteRequest, plan: SchedulerOutput, clock: _Clock) -> None:
        self.steps += 1
        self._metrics.observe_batch(len(plan.num_scheduled_tokens), plan.total_num_scheduled_tokens)
        self._spans.observe(plan, {trace.request_id: trace.traceparent for trace in request.traces}, clock.busy)

    def _refuse_foreign(self, request: pb.ExecuteRequest) -> None:
        if request.generation != self._generation:
            raise RuntimeError(
                f"step {request.step} is of generation {request.generation}, this stage serves {self._generation}"
            )

    def _poison_next_stage(self, step: int) -> None:
        if not self._stage.place.is_last:
            message = pb.PushActivationsRequest(step=step, generation=self._generation, error=self._failure)
            self._send(message, at_once=True)
