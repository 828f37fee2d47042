"""Metrics of speculative parallelism; what a block and its counts are, ``sp_block.py`` says."""

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from services.scheduler.pipeline_recorder import PipelineRecorder
from services.scheduler.sp_block import BlockEnd
from services.scheduler.sp_controller import Reason, SpController

_CONFIDENCE_BUCKETS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.999, 1.0)
"""Narrow where most drafts are."""


class SpMetrics:
    """Counts the blocks of all requests, and tells the recorder, which keeps those of the traced ones."""

    def __init__(self, registry: CollectorRegistry, recorder: PipelineRecorder, controller: SpController) -> None:
        self._recorder = recorder
        self._registry = registry
        self._open: set[str] = set()
        """Requests whose block goes on: their last draft was right."""
        self._drafted = self._counter("drafted", "Draft tokens that ran ahead and were judged.")
        self._accepted = self._counter("accepted", "Draft tokens that the verifier kept.")
        self._emitted = self._counter("emitted", "Tokens that requests got from blocks.")
        self._dropped = self._counter("dropped", "Draft tokens left out for want of confidence.")
        self._flushed = self._counter("flushed", "Draft tokens that stages ran in vain.")
        self._blocks = Counter("forerun_sp_blocks_total", "Blocks, by why they ended.", ["end"], registry=registry)
        self._steps = Counter(
            "forerun_sp_steps_total",
            "Steps, by why they speculate or (does-not-pay) do not.",
            ["reason"],
            registry=registry,
        )
        for end in BlockEnd:
            self._blocks.labels(end.value)
        for reason in Reason:
            self._steps.labels(reason.value)
        self._confidence = Histogram(
            "forerun_sp_draft_confidence",
            "Confidence of judged drafts, by whether they were right.",
            ["right"],
            buckets=_CONFIDENCE_BUCKETS,
            registry=registry,
        )
        self._gauge("acceptance_ratio", "Moving share of the drafts that ran ahead and were right.").set_function(
            lambda: controller.acceptance
        )
        self._gauge("drop_fraction", "Share of each step's drafts that does not run ahead.").set_function(
            lambda: controller.drop_fraction
        )

    def planned(self, reason: Reason) -> None:
        """A step was planned."""
        self._steps.labels(reason.value).inc()

    def compared(self, confidence: float, *, is_right: bool) -> None:
        """A draft, run or dropped, was compared with the token that was sampled in its place."""
        self._confidence.labels(is_right).observe(confidence)

    def accepted(self, request_id: str, confidence: float) -> None:
        """A token came back, and the draft that had run ahead of it was right."""
        self._recorder.judged(request_id, None, confidence)
        self._drafted.inc()
        self._accepted.inc()
        self._emitted.inc()
        self._open.add(request_id)

    def not_accepted(self, request_id: str, end: BlockEnd, confidence: float | None) -> None:
        """A token came back, and the draft that was to run ahead of it was wrong or missing; None: there was none."""
        self._recorder.judged(request_id, end, confidence)
        if end is BlockEnd.NO_DRAFT and request_id not in self._open:
            return  # a plain step
        self._emitted.inc()
        self._drafted.inc(end is BlockEnd.MISS)
        self._dropped.inc(end is BlockEnd.DROPPED)
        self._count_end(request_id, end)

    def not_ahead(self, request_id: str, *, has_ended: bool) -> None:
        """A token came back and nothing had run ahead of it, or the request ended with it."""
        if request_id in self._open:
            self._emitted.inc()
        if has_ended:
            self._recorder.ended((request_id,))  # ``ended`` follows
        else:
            self._recorder.closed(request_id, BlockEnd.NOT_AHEAD)
            self._end_if_open(request_id, BlockEnd.NOT_AHEAD)

    def preempted(self, request_id: str) -> None:
        """A request was preempted, and what it has in flight will be thrown away."""
        self._recorder.rolled_back(request_id, BlockEnd.PREEMPTED)
        self._end_if_open(request_id, BlockEnd.PREEMPTED)

    def ended(self, request_ids: Iterable[str]) -> None:
        """Requests have ended; the recorder knows."""
        for request_id in request_ids:
            self._end_if_open(request_id, BlockEnd.REQUEST_END)

    def flushed(self, rows: int) -> None:
        """Drafted rows came back in vain."""
        self._flushed.inc(rows)

    def _end_if_open(self, request_id: str, end: BlockEnd) -> None:
        if request_id in self._open:
            self._count_end(request_id, end)

    def _count_end(self, request_id: str, end: BlockEnd) -> None:
        self._open.discard(request_id)
        self._blocks.labels(end.value).inc()

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(f"forerun_sp_{name}_tokens_total", text, registry=self._registry)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"forerun_sp_{name}", text, registry=self._registry)
