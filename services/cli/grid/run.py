"""Asks what the plan says and commits it now and then."""

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from services.cli.grid.asking import Answered, ask
from services.cli.grid.journal import Journal
from services.cli.grid.plan import Job
from services.cli.grid.recording import joined
from services.client import ForerunClient
from services.common.expert_action import Action
from services.common.training.progress import Listener
from services.common.workloads.prompt import WorkloadPrompt
from services.router.apex.training.request_table import RequestRow
from services.scheduler.apex.block_table import BlockTable

WARM_UP_TOKENS = 4
"""Of the request that brings a prompt into the prefix cache: the prompt, and a step of the action."""

COMMIT_S = 60.0
"""An interruption loses at most so much."""

Ask = Callable[[WorkloadPrompt, int, Action, str], Awaitable[Answered]]
"""Prompt, most tokens, action and request id."""


class Blocks(Protocol):
    """See ``recording.Recording``."""

    async def take(self, rows: Sequence[RequestRow]) -> tuple[list[RequestRow], list[BlockTable]]:
        """See ``recording.Recording``."""


@dataclass(slots=True)
class GridRun:
    """One run over one journal."""

    ask: Ask
    recording: Blocks
    journal: Journal
    tokens: int | None
    """Most tokens of an answer; None: the workload's own limit."""
    listen: Listener
    commit_s: float = COMMIT_S
    lost: int = 0
    """Requests whose blocks have not all come; they are asked again another time."""
    _name: str = field(default_factory=lambda: secrets.token_hex(3))
    """Sets the requests of this run apart from those of others."""
    _asked: int = 0
    _waiting: list[RequestRow] = field(default_factory=list)

    async def run(self, jobs: Iterable[Job], total: int) -> None:
        """All of them, one after the other; what was asked is committed however it ends.

        Raises:
            RequestEndedError: a request did not end well.
        """
        self.listen.step("requests", total)
        reached, committed = 0, time.monotonic()
        try:
            for job in jobs:
                self._waiting += await self._job(job)
                reached += len(job.prompts)
                self.listen.reach(reached, job.action.name)
                if time.monotonic() - committed >= self.commit_s:
                    await self._commit()
                    committed = time.monotonic()
        finally:
            await self._commit()

    async def _job(self, job: Job) -> list[RequestRow]:
        if job.is_first:
            # Fills the prefix cache, so that no action pays for the prompt.
            await asyncio.gather(*(self.ask(each, WARM_UP_TOKENS, job.action, self._id(each)) for each in job.prompts))
        return list(await asyncio.gather(*(self._request(each, job) for each in job.prompts)))

    async def _request(self, prompt: WorkloadPrompt, job: Job) -> RequestRow:
        request_id = self._id(prompt)
        tokens = prompt.max_tokens if self.tokens is None else min(self.tokens, prompt.max_tokens)
        answered = await self.ask(prompt, tokens, job.action, request_id)
        return RequestRow(
            request_id=request_id,
            prompt_id=prompt.id,
            workload=prompt.workload,
            split=prompt.split,
            expert=job.action.expert.value,
            depth=job.action.depth,
            concurrency=len(job.prompts),
            max_tokens=tokens,
            answer_tokens=answered.tokens,
            seconds=answered.seconds,
            first_token_s=answered.first_token_s,
            drafted=answered.drafted,
            accepted=answered.accepted,
            blocks=answered.blocks,
            preemptions=answered.preemptions,
        )

    async def _commit(self) -> None:
        rows, self._waiting = self._waiting, []
        whole, blocks = await self.recording.take(rows)
        self.lost += len(rows) - len(whole)
        self.journal.commit(whole, joined(blocks))

    def _id(self, prompt: WorkloadPrompt) -> str:
        self._asked += 1
        return f"grid-{self._name}-{self._asked}-{prompt.workload}"


def asks(client: ForerunClient) -> Ask:
    """Of a running system."""

    def one(prompt: WorkloadPrompt, tokens: int, action: Action, request_id: str) -> Awaitable[Answered]:
        depth = action.depth or None
        return ask(client, prompt, tokens, expert=action.expert.value, depth=depth, request_id=request_id)

    return one
