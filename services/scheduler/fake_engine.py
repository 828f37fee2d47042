"""The engine without a model: continuous batching, KV blocks and a ledger as the real one has, text as in a dream.

One task steps all requests: admit what fits, give every running sequence a token, free what ended. A sequence that
finds no free block makes the youngest one give its blocks back and start over, as in vLLM. Tests, the quick start
and trials of routers run on it; it imports neither vLLM nor torch.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from typing import Final

import structlog

from services.common.ledger import LedgerWriter, ReplicaTotals
from services.common.types import Finished, GenerationEvent, ReplicaInfo, Submission
from services.common.version import FORERUN_VERSION
from services.scheduler.config import SchedulerConfig
from services.scheduler.engine import EngineLoad, EngineLostError
from services.scheduler.fake_request import FakeRequest, FakeSequence

_log = structlog.get_logger(__name__)


class FakeEngine:
    """An ``Engine``; see ``FakeEngineConfig`` for its size, speed and failures."""

    def __init__(self, config: SchedulerConfig, address: str, generation: int) -> None:
        """``address`` and ``generation`` go into the ledger."""
        self._replica = config
        self._generation = generation
        self._config: Final = config.fake
        self._writer = LedgerWriter(config.ledger, config.replica_id, address, generation)
        self._waiting: deque[FakeSequence] = deque()
        self._running: list[FakeSequence] = []
        self._free_blocks = config.fake.total_blocks
        self._emitted = 0
        self._stalled = False
        self._work = asyncio.Event()
        self._loop_task: asyncio.Task[None] | None = None
        self._lost: str | None = None

    async def start(self) -> None:
        await asyncio.sleep(self._config.start_time_s)
        if self._config.fail_start:
            raise EngineLostError("the fake engine was told not to start")
        self._writer.start()
        self._publish()
        self._loop_task = asyncio.create_task(self._run(), name="fake-engine")

    async def stop(self) -> None:
        self._lose("the engine was stopped")
        if self._loop_task is not None:
            self._loop_task.cancel()
            await asyncio.wait([self._loop_task])
        await asyncio.to_thread(self._writer.close)

    @property
    def alive(self) -> bool:
        return self._lost is None

    def load(self) -> EngineLoad:
        return EngineLoad(len(self._running), len(self._waiting), self._free_blocks, self._config.total_blocks)

    def info(self) -> ReplicaInfo:
        config, replica = self._config, self._replica
        return ReplicaInfo(
            replica_id=replica.replica_id,
            generation=self._generation,
            model_names=replica.model_names,
            model=replica.model,
            max_model_len=config.max_model_len,
            vocab_size=config.vocab_size,
            dtype="fake",
            pipeline_stages=1,
            tensor_parallel_ranks=1,
            total_blocks=config.total_blocks,
            block_size=config.block_size_tokens,
            max_running_requests=config.max_num_seqs,
            max_waiting_requests=replica.max_queued_requests,
            running_requests=len(self._running),
            waiting_requests=len(self._waiting),
            forerun_version=FORERUN_VERSION,
            free_blocks=self._free_blocks,
            experts=() if replica.experts is None else replica.experts.experts,
            deepest_draft_tokens=0 if replica.experts is None else replica.experts.deepest,
        )

    async def generate(self, submission: Submission) -> AsyncGenerator[GenerationEvent, None]:
        if self._lost is not None:
            raise EngineLostError(self._lost)
        request = FakeRequest(submission, self._config)
        self._waiting.extend(request.sequences)
        self._work.set()
        try:
            while True:
                event = await request.events.get()
                if isinstance(event, EngineLostError):
                    raise event
                yield event
                if isinstance(event, Finished):
                    return
        finally:
            self._drop(request)

    # -- the loop ------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            while self._lost is None:
                await self._work.wait()
                await asyncio.sleep(self._config.step_time_s)
                await self._maybe_fail()
                if self._lost is None:
                    self._step()
        except Exception:  # noqa: BLE001  (a task's end: whatever it was, the requests must hear of it)
            _log.exception("fake engine failed")
            self._lose("the fake engine failed")

    async def _maybe_fail(self) -> None:
        config = self._config
        if config.stall_after_tokens is not None and self._emitted >= config.stall_after_tokens and not self._stalled:
            self._stalled = True
            await asyncio.sleep(config.stall_s)
        if config.die_after_tokens is not None and self._emitted >= config.die_after_tokens:
            self._lose("the fake engine was told to die")

    def _step(self) -> None:
        self._admit()
        for sequence in list(self._running):
            if sequence in self._running and self._has_room_for_next(sequence):
                self._advance(sequence)
        if not self._running and not self._waiting:
            self._work.clear()
        self._publish()

    def _admit(self) -> None:
        while self._waiting and len(self._running) < self._config.max_num_seqs:
            sequence = self._waiting[0]
            needed = sequence.blocks_for(sequence.length + 1)
            if needed > self._free_blocks:
                return
            self._waiting.popleft()
            self._running.append(sequence)
            self._take(sequence, needed)
            sequence.request.note_scheduled()
            self._writer.admitted(sequence.request.submission.reservation_id)

    def _has_room_for_next(self, sequence: FakeSequence) -> bool:
        missing = sequence.blocks_for(sequence.length + 1) - sequence.blocks
        while missing > self._free_blocks:
            youngest = self._running[-1]
            self._preempt(youngest)
            if youngest is sequence:
                return False
        self._take(sequence, missing)
        return True

    def _preempt(self, sequence: FakeSequence) -> None:
        self._running.remove(sequence)
        self._give_back(sequence)
        sequence.prefilled = 0
        sequence.request.preemptions += 1
        self._waiting.appendleft(sequence)

    def _advance(self, sequence: FakeSequence) -> None:
        if sequence.prefill(self._config.prefill_tokens_per_step):
            return
        step = sequence.answer.next()
        self._emitted += 1
        sequence.request.emit(step.delta, step.end)
        if step.end is not None:
            self._running.remove(sequence)
            self._give_back(sequence)

    # -- blocks --------------------------------------------------------------------------------------------------

    def _take(self, sequence: FakeSequence, blocks: int) -> None:
        self._free_blocks -= blocks
        sequence.blocks += blocks

    def _give_back(self, sequence: FakeSequence) -> None:
        self._free_blocks += sequence.blocks
        sequence.blocks = 0

    def _drop(self, request: FakeRequest) -> None:
        for sequence in request.sequences:
            if sequence in self._running:
                self._running.remove(sequence)
            elif sequence in self._waiting:
                self._waiting.remove(sequence)
                self._writer.released(request.submission.reservation_id)
            self._give_back(sequence)
        self._publish()

    def _publish(self) -> None:
        held: dict[str, int] = {}
        for sequence in self._running:
            key = sequence.request.submission.request_id
            held[key] = held.get(key, 0) + sequence.blocks
        waiting: dict[str, int] = {}
        for sequence in self._waiting:
            submission = sequence.request.submission
            key = submission.reservation_id or submission.request_id
            waiting[key] = waiting.get(key, 0) + sequence.blocks_for(sequence.length + 1)
        total = self._config.total_blocks
        taken = total - self._free_blocks
        totals = ReplicaTotals(
            total=total,
            free=self._free_blocks,
            held=taken,
            forecast_peak=taken,
            running=len(self._running),
            waiting=len(self._waiting),
        )
        self._writer.publish(totals, held, waiting)

    def _lose(self, reason: str) -> None:
        if self._lost is not None:
            return
        self._lost = reason
        for request in {sequence.request for sequence in (*self._running, *self._waiting)}:
            request.events.put_nowait(EngineLostError(reason))
        self._work.set()
