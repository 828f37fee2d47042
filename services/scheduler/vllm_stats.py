"""The engine core's own figures, kept from the statistics that vLLM hands to its loggers after every step.

Relies on (vLLM 0.32): ``SchedulerStats.num_running_reqs``, ``num_waiting_reqs``, ``num_skipped_waiting_reqs`` and
``kv_cache_usage`` (share of the pool's blocks, without the null block).
"""

import time

from vllm.config import VllmConfig
from vllm.v1.metrics.loggers import StatLoggerBase
from vllm.v1.metrics.stats import IterationStats, MultiModalCacheStats, SchedulerStats

from services.scheduler.engine import EngineLoad


class LoadRecorder(StatLoggerBase):
    """Remembers the newest load of the one engine core."""

    def __init__(self) -> None:
        self._running = 0
        self._waiting = 0
        self._usage = 0.0
        self._heard_at = time.monotonic()

    def for_engine(self, _config: VllmConfig, _engine_index: int) -> "LoadRecorder":
        """The factory that vLLM asks for."""
        return self

    def record(
        self,
        scheduler_stats: SchedulerStats | None,
        iteration_stats: IterationStats | None,  # noqa: ARG002  (vLLM's signature)
        mm_cache_stats: MultiModalCacheStats | None = None,  # noqa: ARG002
        engine_idx: int = 0,  # noqa: ARG002
    ) -> None:
        """Called by vLLM after every step."""
        self._heard_at = time.monotonic()
        if scheduler_stats is not None:
            self._running = scheduler_stats.num_running_reqs
            self._waiting = scheduler_stats.num_waiting_reqs + scheduler_stats.num_skipped_waiting_reqs
            self._usage = scheduler_stats.kv_cache_usage

    def log_engine_initialized(self) -> None:
        """Nothing to say."""

    def note_work(self) -> None:
        """An idle engine gets work: from now on it is expected to step."""
        self._heard_at = time.monotonic()

    @property
    def silent_s(self) -> float:
        """Seconds since the last step, or since an idle engine got work; means nothing while it is idle."""
        return time.monotonic() - self._heard_at

    def load(self, live_sequences: int, total_blocks: int) -> EngineLoad:
        """The load; ``live_sequences`` corrects figures older than an abort, which no step reports."""
        running = min(self._running, live_sequences)
        waiting = min(self._waiting, live_sequences - running)
        used = round(self._usage * total_blocks) if live_sequences else 0
        return EngineLoad(running, waiting, total_blocks - used, total_blocks)
