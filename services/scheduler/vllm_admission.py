"""Holds waiting requests back from vLLM's scheduler, as the replica's admission policy says.

Lives in vLLM's engine-core process. Relies on (vLLM 0.32, ``Scheduler``): ``schedule`` takes no waiting request while
``running`` has ``max_num_active_reqs`` (vLLM's own bound on admissions, apart from the runner's slots); it drains
``kv_holding_waiting`` first, then ``waiting`` in order, past those in a blocked status, which it lets go there.
"""

import time
from collections.abc import Callable
from itertools import chain
from math import ceil
from typing import Any

from forerun.stage.v1 import service_pb2 as pb
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.request import Request

from services.common.metrics import SECONDS_BUCKETS
from services.scheduler.lookahead.answer_lengths import AnswerLengths
from services.scheduler.lookahead.forecast import Claim, PoolState
from services.scheduler.lookahead.gatekeeper import Gatekeeper, Start
from services.scheduler.lookahead.outlook import Outlooks
from services.scheduler.lookahead.policies import Decision, Policy, Reason

_RATIO_BUCKETS = (0.5, 0.7, 0.8, 0.85, 0.9, 0.95, 1.0, 1.05, 1.1, 1.15, 1.2, 1.3, 1.5, 2.0)


class AdmissionGate:
    """One per replica; used from the engine core's thread."""

    def __init__(
        self,
        scheduler: Any,
        policy: Policy,
        lengths: AnswerLengths,
        registry: CollectorRegistry,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``scheduler``: vLLM's, which this only reads."""
        self._scheduler = scheduler
        self._keeper = Gatekeeper(policy, lengths, clock)
        self._outlooks = Outlooks()
        self._most_active: int = scheduler.max_num_active_reqs
        self._metrics = _Metrics(registry)

    def arrived(self) -> None:
        """A request arrives; vLLM does not have it yet."""
        if not self._scheduler.requests:
            self._keeper.idle()  # after an abort no step follows that would say so
        self._keeper.pace.arrived()

    def active_limit(self) -> int:
        """How many requests may run in the step to be planned: those that do, and those that may start."""
        scheduler = self._scheduler
        active = len(scheduler.running) + scheduler.num_waiting_for_streaming_input + len(scheduler.kv_holding_waiting)
        places = self._most_active - active
        if not self._keeper.wants_forecast(may_start=bool(scheduler.waiting) and places > 0):
            return self._most_active
        decisions = self._keeper.admissible(
            PoolState(self._capacity, self._used, scheduler.block_size, len(self._managers)),
            [self._claim(request) for request in scheduler.running],
            # Those that vLLM passes over, whose grammar is being compiled, take part: it looks at them, and lets them
            # go, only while it may start one.
            ((request.request_id, self._claim(request)) for request in scheduler.waiting),
            places,
            scheduler.max_num_scheduled_tokens,
        )
        self._metrics.decided(decisions)
        admitted = sum(decision.reason.admits for decision in decisions)
        return int(min(self._most_active, active + admitted))

    @property
    def forecast_peak(self) -> int:
        """KV blocks in use at most over the next iterations, by a forecast of some steps ago at most."""
        return ceil(max(self._keeper.peak, self._used)) if self._scheduler.requests else self._used

    def started(self, output: SchedulerOutput) -> dict[str, Start]:
        """Requests that start in a step, as far as the policy was asked."""
        starts = {}
        new = (new.req_id for new in output.scheduled_new_reqs)
        for name in chain(new, output.scheduled_cached_reqs.resumed_req_ids):
            if (start := self._keeper.started(name, self._claim(self._scheduler.requests[name]))) is not None:
                self._metrics.started(start)
                starts[name] = start
        self._keeper.forget(output.finished_req_ids)
        self._outlooks.forget(output.finished_req_ids)
        return starts

    def length_queries(self, output: SchedulerOutput) -> list[tuple[str, int]]:
        """Requests of a step whose remaining length is to be predicted, with the tokens that their answers have."""
        return self._outlooks.wanted(
            # schedule() has counted the step's tokens already.
            (name, max(0, request.num_computed_tokens - request.num_prompt_tokens))
            for name in output.num_scheduled_tokens
            if not (request := self._scheduler.requests[name]).is_prefill_chunk
        )

    def predicted(self, lengths: pb.RemainingLengths) -> None:
        """What the predictor says of some requests."""
        for each in lengths.lengths:
            self._outlooks.learn(each.request_id, each.answer_tokens, lengths.thresholds, each.within)
        self._metrics.predictions.inc(len(lengths.lengths))

    def decoding(self, output: SchedulerOutput) -> set[str]:
        """Requests that decode in a step; to be asked before its results are applied."""
        requests = self._scheduler.requests
        return {name for name in output.num_scheduled_tokens if name in requests and requests[name].num_output_tokens}

    def stepped(self, output: SchedulerOutput, decoding: set[str], gained: int) -> None:
        """A step's results were applied.

        Args:
            output: its plan.
            decoding: as ``decoding`` said.
            gained: tokens that those requests got.
        """
        scheduler = self._scheduler
        everywhere = sum(1 for request in scheduler.running if request.num_output_tokens > 1)
        rows = len(decoding)
        self._keeper.pace.stepped(output.total_num_scheduled_tokens, rows, max(everywhere, rows), gained)
        if (ratio := self._keeper.stepped(self._used)) is not None:
            self._metrics.forecast_ratio.observe(ratio)

    def _claim(self, request: Request) -> Claim:
        sampling = request.sampling_params
        limit = min(request.max_tokens - request.num_output_tokens, self._scheduler.max_model_len - request.num_tokens)
        at_least = 0
        if sampling is not None:
            never_ends = sampling.ignore_eos and not sampling.stop_token_ids and not sampling.stop
            at_least = limit if never_ends else sampling.min_tokens - request.num_output_tokens
        held = sum(len(manager.req_to_blocks.get(request.request_id, ())) for manager in self._managers)
        return Claim(
            request.num_tokens,
            request.num_output_tokens,
            max(0, limit),
            max(0, min(at_least, limit)),
            held,
            self._outlooks.of(request.request_id, request.num_output_tokens),
        )

    @property
    def _managers(self) -> tuple[Any, ...]:
        return tuple(self._scheduler.kv_cache_manager.coordinator.single_type_managers)

    @property
    def _capacity(self) -> int:
        return int(self._scheduler.kv_cache_manager.block_pool.num_gpu_blocks) - 1  # the null block is nobody's

    @property
    def _used(self) -> int:
        return self._capacity - int(self._scheduler.kv_cache_manager.block_pool.get_num_free_blocks())


class _Metrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self._admitted = Counter(
            "forerun_admission_admitted_total", "Requests that started, by why.", ["reason"], registry=registry
        )
        self._held_back = Counter(
            "forerun_admission_held_back_steps_total",
            "Steps in which the first waiting request was held back, by why.",
            ["reason"],
            registry=registry,
        )
        for reason in Reason:
            (self._admitted if reason.admits else self._held_back).labels(reason.value)
        self._delay = Histogram(
            "forerun_admission_delay_seconds",
            "Seconds that a started request was held back by the policy.",
            buckets=SECONDS_BUCKETS,
            registry=registry,
        )
        self._peak = Gauge(
            "forerun_admission_forecast_peak_blocks",
            "KV blocks in use at most over the next iterations, with the request that was decided on last.",
            registry=registry,
        )
        self.forecast_ratio = Histogram(
            "forerun_admission_forecast_peak_ratio",
            "Forecast peak of KV blocks over the observed one.",
            buckets=_RATIO_BUCKETS,
            registry=registry,
        )

        self.predictions = Counter(
            "forerun_admission_predictions_total", "Remaining lengths that the predictor gave.", registry=registry
        )

    def decided(self, decisions: list[Decision]) -> None:
        for decision in decisions[-1:]:
            self._peak.set(decision.peak)
            if not decision.reason.admits:
                self._held_back.labels(decision.reason.value).inc()

    def started(self, start: Start) -> None:
        self._admitted.labels(start.decision.reason.value).inc()
        self._delay.observe(start.delay_s)
