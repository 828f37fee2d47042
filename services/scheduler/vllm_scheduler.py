"""Forerun's scheduler inside vLLM's engine core: micro-batches for pipeline stages, and the KV ledger's source.

Lives in vLLM's engine-core process. Relies on (vLLM 0.32, ``Scheduler``): ``schedule`` skips a running request while
``current_step < request.next_decode_eligible_step`` (vLLM's own hook for staggering decodes); ``running`` and
``waiting`` hold the requests, and ``_preempt_request`` moves one that was taken out of the former to the latter;
``kv_cache_manager`` counts blocks. Nothing of vLLM is replaced: decisions stay vLLM's.
"""

import math
import time
from collections.abc import Collection, Container
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.request_queue import SchedulingPolicy
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutputs
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

from services.common.metrics import MetricsServer
from services.common.row_kind import RowKind
from services.common.tracing import is_sampled, setup_tracing
from services.scheduler.engine_core_settings import RESERVATION_HEADER, TENANT_HEADER, EngineCoreSettings
from services.scheduler.ledger_source import LedgerSource, RequestBlocks
from services.scheduler.lookahead.answer_lengths import AnswerLengths
from services.scheduler.lookahead.fair_share import FairShare
from services.scheduler.lookahead.policies import make_policy
from services.scheduler.pipeline_recorder import PipelineRecorder
from services.scheduler.span_writer import SpanWriter
from services.scheduler.step_record import Row
from services.scheduler.vllm_admission import AdmissionGate
from services.scheduler.vllm_fair_queue import FairQueue
from services.scheduler.vllm_kv_events import PrefixPublisher

_BATCH_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class ForerunScheduler(Scheduler):
    """vLLM's scheduler plus micro-batching and bookkeeping; one per replica."""

    def __init__(self, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(vllm_config, *args, **kwargs)
        self._settings = settings = EngineCoreSettings.from_additional_config(vllm_config.additional_config)
        self._stages = vllm_config.parallel_config.pipeline_parallel_size
        self._registry = registry = CollectorRegistry()
        self._ledger = LedgerSource(settings, self.block_size, registry)
        # vLLM makes none that stays inside the process; its own goes with the events nowhere.
        self.kv_event_publisher = PrefixPublisher(self.block_size, self._ledger.prefixes)
        self._micro_batch = Gauge(
            "forerun_micro_batch_limit", "Most decoding requests that one step may take.", registry=registry
        )
        self._step_requests = Histogram(
            "forerun_step_requests", "Requests in one step.", buckets=_BATCH_BUCKETS, registry=registry
        )
        self._preemptions = Counter(
            "forerun_preemptions_total", "Running requests that lost their KV blocks.", registry=registry
        )
        self._discarded = Counter(
            "forerun_discarded_tokens_total", "Tokens whose keys and values preemptions threw away.", registry=registry
        )
        self._spans = _span_writer(settings, self._stages, registry)
        self._recorder = PipelineRecorder(
            None if self._spans is None else self._spans.put, settings.telemetry.max_block_spans
        )
        self._lengths = AnswerLengths(self.max_model_len, settings.admission.expected_answer_tokens)
        policy = make_policy(settings.admission)
        self._gate = None if policy is None else AdmissionGate(self, policy, self._lengths, registry)
        if settings.admission.fair_share:
            self.waiting = FairQueue(
                FairShare(settings.admission.tenant_weights),
                self._tenant_of,
                self._expected_tokens,
                by_priority=self.policy is SchedulingPolicy.PRIORITY,
            )
        self._was_idle = True
        self._metrics_server = _serve_metrics(settings, registry)
        self._publish()

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        """vLLM's schedule over at most one micro-batch of decodes (all of them without micro-batching)."""
        self._make_way()
        if self._stages > 1:
            self._hold_back()
        if self._gate is not None:
            self.max_num_active_reqs = self._gate.active_limit()
        output = super().schedule(throttle_prefills)
        if output.scheduled_new_reqs:
            self._note_admitted(output)
        if self._gate is not None:
            for request_id, start in self._gate.started(output).items():
                self._recorder.admitted(request_id, start)
            if self._settings.predictor is not None:
                # SchedulerOutput has no field for them; the executor reads this attribute.
                output.forerun_length_queries = self._gate.length_queries(output)
        if output.num_scheduled_tokens:
            self._step_requests.observe(len(output.num_scheduled_tokens))
            output.forerun_after_idle, self._was_idle = self._was_idle, False
        if self._recorder.is_active:
            self._record(output)
        return output

    def update_from_output(self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput) -> Any:
        """vLLM's update; then the new block counts go to the ledger, off this thread."""
        decoding = set() if self._gate is None else self._gate.decoding(scheduler_output)
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        if self._gate is not None:
            for lengths in getattr(model_runner_output, "forerun_remaining_lengths", ()):
                self._gate.predicted(lengths)
            self._gate.stepped(scheduler_output, decoding, _tokens_of(decoding, outputs))
        if (record := getattr(scheduler_output, "forerun_record", None)) is not None:
            number = getattr(model_runner_output, "forerun_step", 0)
            times = getattr(model_runner_output, "forerun_stage_times", [])
            ran = model_runner_output.req_id_to_index.keys()
            # The first stage drafts for what it runs; the last one leaves out what it knows to be in vain.
            began = ran | getattr(model_runner_output, "forerun_drafts", {}).keys()
            self._recorder.returned(record, number, times, began=began, ran=ran)
        self._publish()
        return outputs

    def add_request(self, request: Request) -> None:
        """vLLM's; the ledger learns of the waiting request."""
        self._was_idle |= not self.requests
        if self._gate is not None:
            self._gate.arrived()
        super().add_request(request)
        self._publish()

    def finish_requests(self, *args: Any, **kwargs: Any) -> Any:
        """vLLM's (aborts); freed blocks go to the ledger at once, since no step may follow."""
        finished = super().finish_requests(*args, **kwargs)
        self._recorder.ended(request.request_id for request in finished)
        self._publish()
        return finished

    def _preempt_request(self, request: Request, *args: Any, **kwargs: Any) -> None:
        # vLLM's; counted.
        self._preemptions.inc()
        self._discarded.inc(request.num_computed_tokens)
        super()._preempt_request(request, *args, **kwargs)

    def _free_request(self, request: Request, *args: Any, **kwargs: Any) -> Any:
        # vLLM's; every request ends here, whatever ends it.
        if tokens := request.num_output_tokens:
            self._lengths.ended(tokens, by_itself=request.status == RequestStatus.FINISHED_STOPPED)
        return super()._free_request(request, *args, **kwargs)

    def shutdown(self) -> None:
        """vLLM's; then the replica leaves the ledger."""
        super().shutdown()
        self._recorder.close()
        if self._spans is not None:
            self._spans.close()
        self._ledger.close()
        if self._metrics_server is not None:
            self._metrics_server.stop()

    def _make_way(self) -> None:
        """Where all places are taken, the most urgent waiting request gets that of the least urgent running one."""
        if self.policy is not SchedulingPolicy.PRIORITY or not self._settings.admission.make_way:
            return
        if not self.waiting or len(self.running) < self.max_num_running_reqs:
            return
        least = max(self.running, key=lambda request: (request.priority, request.arrival_time))
        if self.waiting.peek_request().priority < least.priority and self._request_blocks_can_be_freed(least):
            self.running.remove(least)
            self._preempt_request(least, time.monotonic())

    def _hold_back(self) -> None:
        """Splits a crowd: of the decodes that are ready, at most ceil(running / stages) go into the next step.

        vLLM would put all ready requests into one batch; the other stages would then idle until it comes back. Once
        split, the batches return one after the other and stay apart by themselves; this only evens them out again
        as requests come and go. Without micro-batching it is the other way round: whoever is back early waits until
        all are, since batches that once came apart would stay apart.
        """
        decoding = [request for request in self.running if not request.is_prefill_chunk]
        ready = [request for request in decoding if request.num_computed_tokens < request.num_tokens]
        batches = self._stages if self._settings.micro_batching else 1
        limit = math.ceil(len(decoding) / batches)
        self._micro_batch.set(limit)
        is_apart = batches == 1 and len(ready) < limit
        for request in ready[0 if is_apart else limit :]:
            self._skip_next_step(request)

    def _skip_next_step(self, request: Request) -> None:
        # schedule() counts the step up first; eligible again one step later.
        request.next_decode_eligible_step = self.current_step + 2

    def _note_admitted(self, output: SchedulerOutput) -> None:
        traceparents = {}
        for new in output.scheduled_new_reqs:
            request = self.requests[new.req_id]
            self._ledger.admitted(self._reservation_of(request))
            traceparent = (request.trace_headers or {}).get("traceparent", "")
            if is_sampled(traceparent):
                traceparents[new.req_id] = traceparent
                self._recorder.begin(new.req_id, traceparent)
        # SchedulerOutput has no field for trace contexts; the executor reads this attribute and the codec ignores it.
        output.forerun_traceparents = traceparents

    def _record(self, output: SchedulerOutput) -> None:
        """Notes a step, and who has ended, for the traces."""
        self._recorder.ended(output.finished_req_ids)
        if output.num_scheduled_tokens:
            drafted = frozenset(self._drafted_in(output))
            # As with the trace contexts.
            output.forerun_record = self._recorder.planned(
                output.num_scheduled_tokens,
                lambda request_id: self._row(self.requests[request_id], output, is_draft=request_id in drafted),
            )

    def _drafted_in(self, output: SchedulerOutput) -> Collection[str]:  # noqa: ARG002  (speculation overrides it)
        """Requests whose input in this step is a draft."""
        return ()

    @staticmethod
    def _row(request: Request, output: SchedulerOutput, *, is_draft: bool) -> Row:
        tokens = output.num_scheduled_tokens[request.request_id]
        position = request.num_computed_tokens - tokens  # schedule() has counted them already
        to_verify = len(output.scheduled_spec_decode_tokens.get(request.request_id, ()))
        is_prefill = tokens - to_verify > 1 or position < request.num_prompt_tokens
        kind = RowKind.UNJUDGED if is_draft else RowKind.PREFILL if is_prefill else RowKind.VERIFIED
        return Row(kind, position, is_draft, samples=not request.is_prefill_chunk)

    def _publish(self) -> None:
        pool = self.kv_cache_manager.block_pool
        self._ledger.publish(
            total=pool.num_gpu_blocks - 1,  # the null block is nobody's
            free=pool.get_num_free_blocks(),
            forecast=None if self._gate is None else self._gate.forecast_peak,
            running=[self._blocks_of(request) for request in self.running],
            waiting=[
                self._blocks_of(request) for queue in (self.kv_holding_waiting, self.waiting) for request in queue
            ],
        )

    def _blocks_of(self, request: Request) -> RequestBlocks:
        managers = self.kv_cache_manager.coordinator.single_type_managers
        held = sum(len(manager.req_to_blocks.get(request.request_id, ())) for manager in managers)
        left = (request.max_tokens or 0) - request.num_output_tokens
        return RequestBlocks(request.request_id, self._reservation_of(request), held, request.num_tokens, max(0, left))

    def _expected_tokens(self, request: Request) -> float:
        return float(request.num_prompt_tokens + self._lengths.expected(request.max_tokens))

    @staticmethod
    def _tenant_of(request: Request) -> str:
        return str((request.trace_headers or {}).get(TENANT_HEADER, ""))

    @staticmethod
    def _reservation_of(request: Request) -> str:
        return str((request.trace_headers or {}).get(RESERVATION_HEADER, ""))


def _tokens_of(requests: Container[str], outputs: dict[int, EngineCoreOutputs]) -> int:
    """New tokens of ``requests`` in what an update of the scheduler returned."""
    return sum(
        len(each.new_token_ids) for some in outputs.values() for each in some.outputs if each.request_id in requests
    )


def _span_writer(settings: EngineCoreSettings, stages: int, registry: CollectorRegistry) -> SpanWriter | None:
    """None where spans go nowhere."""
    if not settings.telemetry.keeps_spans:
        return None
    return SpanWriter(setup_tracing("engine-core", settings.telemetry, registry), stages)


def _serve_metrics(settings: EngineCoreSettings, registry: CollectorRegistry) -> MetricsServer | None:
    """The engine-core process's own page; vLLM's metrics live in the front process."""
    if settings.metrics_listen is None:
        return None
    server = MetricsServer(settings.metrics_listen, [registry], allow_plaintext=settings.metrics_allow_plaintext)
    server.start()
    return server
