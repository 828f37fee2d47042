"""A model of stages for property tests of the real SP scheduler: KV slots that remember tokens, and fallible drafts.

Each stage keeps, slot by slot of its KV cache, which token was written there; a row of a step reads the slots of its
block table up to its own position. The last stage "samples" a hash of what it reads, so a wrong input, a block used
twice, a slot that a rolled-back draft left behind, or an unverified token in the prefix cache changes the text.
"""

import hashlib
from collections import deque
from dataclasses import dataclass, field
from random import Random
from typing import Any

from forerun.stage.v1 import service_pb2 as pb
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request

VOCABULARY = 50
STOP_TOKEN = 7


def next_token(text: list[int]) -> int:
    """What the model says after ``text``."""
    digest = hashlib.blake2b(bytes(str(text), "ascii"), digest_size=4).digest()
    return int.from_bytes(digest, "big") % VOCABULARY


def reference(prompt: list[int], sampling: SamplingParams) -> list[int]:
    """The answer without any scheduling."""
    text, answer = list(prompt), []
    while len(answer) < (sampling.max_tokens or 0):
        answer.append(next_token(text))
        text.append(answer[-1])
        if answer[-1] in (sampling.stop_token_ids or ()):
            break
    return answer


@dataclass
class _Row:
    """A request's part of a step on its way through the stages."""

    start: int
    tokens: list[int]


class Stage:
    """One stage's KV cache and block tables."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._slots: dict[int, int] = {}
        self._blocks: dict[str, list[int]] = {}

    def take(self, plan: SchedulerOutput) -> None:
        """Enters the plan's blocks, for rows that are left out too."""
        for request_id in plan.finished_req_ids:
            self._blocks.pop(request_id, None)
        for new in plan.scheduled_new_reqs:
            self._blocks[new.req_id] = list(new.block_ids[0])
        cached = plan.scheduled_cached_reqs
        for request_id, new_blocks in zip(cached.req_ids, cached.new_block_ids, strict=True):
            if request_id in cached.resumed_req_ids:
                self._blocks[request_id] = []
            if new_blocks is not None:
                self._blocks[request_id].extend(new_blocks[0])

    def run(self, rows: dict[str, _Row]) -> dict[str, list[int]]:
        """Writes all rows' tokens, as a layer does before it attends; each row's whole text as the slots have it."""
        for request_id, row in rows.items():
            for offset, token in enumerate(row.tokens):
                self._slots[self._slot(request_id, row.start + offset)] = token
        return {
            request_id: [self._slots[self._slot(request_id, place)] for place in range(row.start + len(row.tokens))]
            for request_id, row in rows.items()
        }

    def _slot(self, request_id: str, position: int) -> int:
        block = self._blocks[request_id][position // self._block_size]
        return block * self._block_size + position % self._block_size


@dataclass
class _InFlight:
    plan: SchedulerOutput
    rows: dict[str, _Row]
    sampling: set[str]
    drafts: dict[str, pb.Draft] = field(default_factory=dict)


class SpPipeline:
    """The scheduler and up to ``stages`` steps in flight, as the engine core's loop keeps them."""

    def __init__(
        self, scheduler: Any, stages: int, block_size: int, random: Random, hit: float, drop: float, hasher: Any
    ) -> None:
        self.scheduler = scheduler
        self._stages = stages
        self._first, self._last = Stage(block_size), Stage(block_size)
        self._random = random
        self._hit = hit
        self._drop = drop
        self._in_flight: deque[_InFlight] = deque()
        self._kept: dict[str, int] = {}
        self.answers: dict[str, list[int]] = {}
        self.finished: set[str] = set()
        self._hasher = hasher

    def add(self, name: str, prompt: list[int], sampling: SamplingParams) -> None:
        request = Request(name, prompt, sampling, None, block_hasher=self._hasher)
        self.scheduler.add_request(request)
        self.answers[name] = []

    @property
    def is_idle(self) -> bool:
        return not self.scheduler.has_requests() and not self._in_flight

    def turn(self) -> None:
        """One turn of the engine's loop: fill the pipeline, then apply the oldest step."""
        while len(self._in_flight) < self._stages and self.scheduler.has_requests():
            plan = self.scheduler.schedule()
            self._in_flight.append(self._run_first_stage(plan))
            if not plan.num_scheduled_tokens:
                break
        if self._in_flight:
            self._apply(self._in_flight.popleft())

    def _run_first_stage(self, plan: SchedulerOutput) -> _InFlight:
        self._first.take(plan)
        drafted = set(plan.forerun_speculation.drafted_request_ids)
        requests = self.scheduler.requests
        step = _InFlight(plan, {}, {id_ for id_ in plan.num_scheduled_tokens if not requests[id_].is_prefill_chunk})
        for request_id, start, tokens in _planned(plan):
            draft = self._kept.pop(request_id, None)
            if request_id not in drafted:
                row = _Row(start, tokens)
            elif draft is not None:
                row = _Row(start, [draft])
            else:
                continue
            step.rows[request_id] = row
        texts = self._first.run(step.rows)
        for request_id in plan.forerun_speculation.draft_request_ids:
            if request_id in texts:
                step.drafts[request_id] = self._draft(request_id, texts[request_id])
        return step

    def _draft(self, request_id: str, text: list[int]) -> pb.Draft:
        token = next_token(text)
        if self._random.random() >= self._hit:
            token = (token + 1 + self._random.randrange(VOCABULARY - 1)) % VOCABULARY
        draft = pb.Draft(request_id=request_id, token_id=token, dropped=self._random.random() < self._drop)
        if not draft.dropped:
            self._kept[request_id] = token
        return draft

    def _apply(self, step: _InFlight) -> None:
        self._last.take(step.plan)
        names = list(step.rows)
        texts = self._last.run(step.rows)
        sampled = [[next_token(texts[name])] if name in step.sampling else [] for name in names]
        result = ModelRunnerOutput(names, {name: index for index, name in enumerate(names)}, sampled)
        result.forerun_drafts = step.drafts
        for outputs in self.scheduler.update_from_output(step.plan, result).values():
            for each in outputs.outputs:
                self.answers[each.request_id].extend(each.new_token_ids)
                if each.finish_reason is not None:
                    self.finished.add(each.request_id)


def _planned(plan: SchedulerOutput) -> list[tuple[str, int, list[int]]]:
    """Each request of a step with its first position and its tokens; none where they are drafts."""
    planned = []
    for new in plan.scheduled_new_reqs:
        count = plan.num_scheduled_tokens[new.req_id]
        start = new.num_computed_tokens
        planned.append((new.req_id, start, list(new.prompt_token_ids or ())[start : start + count]))
    cached = plan.scheduled_cached_reqs
    for request_id, start, tokens in zip(cached.req_ids, cached.num_computed_tokens, cached.new_token_ids, strict=True):
        planned.append((request_id, start, list(tokens)))
    return planned
