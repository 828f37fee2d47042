"""One steady batch on one replica, at its scheduler's own door."""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import Random

import httpx

from services.common.rpc import aio_channel
from services.common.types import Delta, Finished, ReplicaState, SamplingOptions, Submission
from services.router.replica_session import ReplicaSession
from services.workers.synthetic_text import reference_answer

PROMPT_TOKENS = 16
WINDOW = (0.2, 0.6)
"""The measured part of a batch, in shares of its tokens: after the prefills, before the first request ends."""
CONNECT_TIMEOUT_S, HTTP_TIMEOUT_S = 30.0, 30.0

_LOOK_S, _WATCH_S = 0.25, 0.01
"""How often a counter is read until the window is near, and then until the step that opens it."""
_TOKENS = re.compile(r"^vllm:generation_tokens_total\{[^}]*\} (\S+)$", re.MULTILINE)
_DRAFTS = re.compile(r"^forerun_sp_(drafted|accepted)_tokens_total (\S+)$", re.MULTILINE)


@dataclass(frozen=True)
class Measured:
    """What a batch did within the window."""

    tokens_per_s: float
    acceptance: float
    """Share of right drafts; 0 without speculation."""


@dataclass(frozen=True)
class _Reading:
    when_s: float
    tokens: float
    drafted: float
    accepted: float


class Replica:
    """A session to one scheduler, and its two metrics pages."""

    def __init__(self, session: ReplicaSession, http: httpx.AsyncClient, pages: Sequence[str], vocabulary: int) -> None:
        self._session = session
        self._http = http
        self._front_page, self._core_page = pages
        self._vocabulary = vocabulary

    async def run(self, batch: int, tokens: int, seed: int) -> Measured:
        """Answers of ``tokens`` tokens to ``batch`` prompts at once, each compared with the reference.

        Raises ``RuntimeError`` when a text is wrong or a request ended within the window.
        """
        vocabulary, random = self._vocabulary, Random(seed)
        prompts = [[random.randrange(vocabulary) for _ in range(PROMPT_TOKENS)] for _ in range(batch)]
        before = await self._count()
        async with asyncio.TaskGroup() as group:
            answers = [group.create_task(self._answer(f"{seed}-{i}", each, tokens)) for i, each in enumerate(prompts)]
            opening, closing = [await self._reading(before + share * batch * tokens) for share in WINDOW]
            if any(answer.done() for answer in answers):
                raise RuntimeError("a request ended within the window; ask for longer answers")
        for prompt, task in zip(prompts, answers, strict=True):
            if task.result() != reference_answer(prompt, tokens, vocabulary):
                raise RuntimeError(f"the answer to {prompt} is not the reference's: {task.result()}")
        drafted = closing.drafted - opening.drafted
        return Measured(
            tokens_per_s=(closing.tokens - opening.tokens) / (closing.when_s - opening.when_s),
            acceptance=(closing.accepted - opening.accepted) / drafted if drafted else 0.0,
        )

    async def _answer(self, request_id: str, prompt: list[int], tokens: int) -> list[int]:
        sampling = SamplingOptions(temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False)
        request = self._session.submit(Submission(request_id, tuple(prompt), sampling, final_only=True), blocks=0)
        answer: list[int] = []
        while True:
            for event in await request.events():
                if isinstance(event, Delta):
                    answer.extend(event.token_ids)
                elif isinstance(event, Finished):
                    return answer

    async def _reading(self, tokens: float) -> _Reading:
        """Right after the first step by whose end ``tokens`` tokens have been generated."""
        while (count := await self._count()) < tokens:  # noqa: ASYNC110  (a counter in another process)
            await asyncio.sleep(_LOOK_S)
        reached = count
        while count == reached:
            await asyncio.sleep(_WATCH_S)
            count = await self._count()
        when_s = time.perf_counter()
        drafts = {name: float(value) for name, value in _DRAFTS.findall(await self._page(self._core_page))}
        return _Reading(when_s, count, drafts.get("drafted", 0.0), drafts.get("accepted", 0.0))

    async def _count(self) -> float:
        found = _TOKENS.search(await self._page(self._front_page))
        return float(found.group(1)) if found else 0.0

    async def _page(self, address: str) -> str:
        return (await self._http.get(f"http://{address}/metrics")).text


@asynccontextmanager
async def connect(replica_id: str, address: str, pages: Sequence[str]) -> AsyncIterator[Replica]:
    """A session to the scheduler at ``address``, whose pages (its own, its engine core's) are at ``pages``."""
    changed = asyncio.Event()
    session = ReplicaSession(replica_id, address, "sp-synthetic", aio_channel(address), changed.set)
    running = asyncio.create_task(session.run())
    try:
        async with httpx.AsyncClient(timeout=HTTP_TIMEOUT_S) as http:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                while session.info is None or session.state is not ReplicaState.SERVING:
                    await changed.wait()
                    changed.clear()
            yield Replica(session, http, pages, session.info.vocab_size)
    finally:
        running.cancel()
        await asyncio.wait([running])
