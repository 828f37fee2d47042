"""An engine that does what a test says: events are pushed by hand, aborts are recorded."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator

from services.common.types import Finished, GenerationEvent, ReplicaInfo, Submission
from services.scheduler.engine import EngineLoad

INFO = ReplicaInfo(
    replica_id="r1",
    generation=7,
    model_names=("m",),
    model="m",
    max_model_len=100,
    vocab_size=1000,
    dtype="fake",
    pipeline_stages=1,
    tensor_parallel_ranks=1,
    total_blocks=10,
    block_size=16,
    max_running_requests=2,
    max_waiting_requests=2,
)


class ScriptedEngine:
    """An ``Engine``; ``say(id, thing)`` makes the request's generator yield or raise ``thing``."""

    def __init__(self, info: ReplicaInfo = INFO) -> None:
        self._info = info
        self._scripts: dict[str, asyncio.Queue[GenerationEvent | Exception | None]] = defaultdict(asyncio.Queue)
        self.begun: list[Submission] = []
        self.let_go: list[str] = []
        self.alive = True

    def say(self, engine_id: str, thing: GenerationEvent | Exception | None) -> None:
        """None ends the generator without a ``Finished``."""
        self._scripts[engine_id].put_nowait(thing)

    async def start(self) -> None:
        pass

    async def stop(self) -> None:
        self.alive = False

    def info(self) -> ReplicaInfo:
        return self._info

    def load(self) -> EngineLoad:
        return EngineLoad(0, 0, self._info.total_blocks, self._info.total_blocks)

    async def generate(self, submission: Submission) -> AsyncGenerator[GenerationEvent, None]:
        self.begun.append(submission)
        try:
            while True:
                thing = await self._scripts[submission.request_id].get()
                if thing is None:
                    return
                if isinstance(thing, Exception):
                    raise thing
                yield thing
                if isinstance(thing, Finished):
                    return
        finally:
            self.let_go.append(submission.request_id)
