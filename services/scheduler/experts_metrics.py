"""Metrics of speculation in blocks: numerators and denominators, by expert and by position in the block."""

from collections.abc import Callable, Mapping
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge

from services.common.expert import Expert
from services.scheduler.apex.block import Block, Why


class ExpertsMetrics:
    """Counts the blocks of all requests."""

    def __init__(self, registry: CollectorRegistry, experts: tuple[Expert, ...], deepest: int) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"forerun_spec_{name}", text, labels, registry=registry)

        self._blocks = counter("blocks_total", "Blocks, by who drafted and why it was chosen.", "expert", "why")
        self._drafted = counter("drafted_tokens_total", "Draft tokens that were verified.", "expert")
        self._accepted = counter(
            "accepted_tokens_total", "Draft tokens that requests got, since they were right.", "expert"
        )
        self._emitted = counter("emitted_tokens_total", "Tokens that requests got from blocks.", "expert")
        self._drafted_at = counter(
            "position_drafted_total", "Blocks with a draft at this position, from 1.", "expert", "position"
        )
        self._accepted_at = counter(
            "position_accepted_total", "Blocks whose draft at this position was right.", "expert", "position"
        )
        self._draft_seconds = Counter(
            "forerun_spec_draft_seconds_total", "Time that steps waited for the neural drafter.", registry=registry
        )
        self._experts = experts
        for expert in experts:
            for each in (self._drafted, self._accepted, self._emitted):
                each.labels(expert)
            for why in Why:
                self._blocks.labels(expert, why)
            for position in range(1, deepest + 1 if expert is not Expert.PLAIN else 1):
                self._drafted_at.labels(expert, position)
                self._accepted_at.labels(expert, position)

    def watch(self, registry: CollectorRegistry, factors: Callable[[], Mapping[Expert, float]]) -> None:
        """Shows how the depth model is corrected; 1 for experts that ``factors`` does not name."""
        gauge = Gauge(
            "forerun_spec_odds_factor",
            "Factor on the depth model's odds of rejection, as the replica's own blocks ask for.",
            ["expert"],
            registry=registry,
        )
        for expert in self._experts:
            if expert is not Expert.PLAIN:
                gauge.labels(expert).set_function(partial(_factor, factors, expert))

    def closed(self, block: Block) -> None:
        """A block was verified."""
        expert = block.choice.expert
        self._blocks.labels(expert, block.choice.why).inc()
        self._drafted.labels(expert).inc(block.drafted)
        self._accepted.labels(expert).inc(block.kept)
        self._emitted.labels(expert).inc(block.emitted)
        for position in range(1, block.drafted + 1):
            self._drafted_at.labels(expert, position).inc()
            if position <= block.kept:
                self._accepted_at.labels(expert, position).inc()

    def drafted(self, seconds: float) -> None:
        """The neural drafter ran."""
        self._draft_seconds.inc(seconds)


def _factor(factors: Callable[[], Mapping[Expert, float]], expert: Expert) -> float:
    return factors().get(expert, 1.0)
