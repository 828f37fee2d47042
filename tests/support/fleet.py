"""Schedulers with fake engines and a router before them, as real processes."""

import asyncio
from contextlib import aclosing
from pathlib import Path
from typing import Any

from services.client import ClientEvent, ForerunClient, Started
from services.common.errors import RequestEndedError
from services.common.outcome import Outcome
from services.common.types import Delta, Finished, SamplingOptions
from tests.support.router_process import RouterProcess
from tests.support.scheduler_process import SchedulerProcess

FAST: dict[str, Any] = {"step_time_s": 0.002, "max_num_seqs": 8}
SLOW: dict[str, Any] = {"step_time_s": 0.02, "max_num_seqs": 8}

PROMPT = [5, 6, 7]


def endless(**changes: Any) -> SamplingOptions:
    """An answer that only its limit ends, 2000 tokens unless changed."""
    return SamplingOptions(**({"max_tokens": 2000, "ignore_eos": True} | changes))


class Fleet:
    """``scheduler`` and ``router`` start processes; ``end`` ends them all."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._processes: list[SchedulerProcess | RouterProcess] = []

    def scheduler(self, replica_id: str = "r0", *, wait: bool = True, **config: Any) -> SchedulerProcess:
        process = SchedulerProcess(self._folder, replica_id=replica_id, **config)
        self._processes.append(process)
        if wait:
            process.start()
        else:
            process.spawn()
        return process

    def router(self, replicas: dict[str, SchedulerProcess], *, wait: bool = True, **config: Any) -> RouterProcess:
        addresses = {name: process.address for name, process in replicas.items()}
        process = RouterProcess(self._folder, addresses, **config)
        self._processes.append(process)
        if wait:
            process.start(timeout_s=120 if config.get("tokenizer") else 30)
        else:
            process.spawn()
        return process

    def end(self) -> None:
        for process in reversed(self._processes):
            process.end()


class Answer:
    """One request, read in the background."""

    def __init__(self, client: ForerunClient, prompt: Any = PROMPT, sampling: Any = None, **options: Any) -> None:
        self.events: list[ClientEvent] = []
        self.error: RequestEndedError | None = None
        self.begun = asyncio.Event()
        self.task = asyncio.create_task(self._read(client, prompt, sampling or endless(), options))

    @property
    def tokens(self) -> list[int]:
        """Of the first choice."""
        return [id_ for event in self.events if isinstance(event, Delta) and not event.index for id_ in event.token_ids]

    @property
    def text(self) -> str:
        return "".join(event.text for event in self.events if isinstance(event, Delta) and not event.index)

    @property
    def replica_id(self) -> str:
        assert isinstance(self.events[0], Started)
        return self.events[0].replica_id

    @property
    def started(self) -> int:
        return sum(isinstance(event, Started) for event in self.events)

    async def outcome(self, timeout_s: float = 15.0) -> Outcome:
        """How it ended."""
        await asyncio.wait_for(asyncio.shield(self.task), timeout_s)
        if self.error is not None:
            return self.error.outcome
        assert isinstance(self.events[-1], Finished)
        return self.events[-1].outcome

    async def first_output(self, timeout_s: float = 15.0) -> None:
        await asyncio.wait_for(self.begun.wait(), timeout_s)

    async def cancel(self) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)

    async def _read(self, client: ForerunClient, prompt: Any, sampling: Any, options: dict[str, Any]) -> None:
        try:
            async with aclosing(client.generate(prompt, sampling, **options)) as events:
                async for event in events:
                    self.events.append(event)
                    if isinstance(event, Delta):
                        self.begun.set()
        except RequestEndedError as error:
            self.error = error
            self.begun.set()
