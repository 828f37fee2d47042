"""A model of stages for property tests of the real SP scheduler: KV slots that remember tokens, and fallible drafts.

The stages keep the books of synthetic devices (``services/workers/kv_books.py``) and say what those say, but all in one
process and in the order of the engine's loop, so that thousands of schedules take a minute.
"""

from collections import deque
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import numpy as np
from forerun.stage.v1 import service_pb2 as pb
from numpy.typing import NDArray
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request

from services.workers import synthetic_text
from services.workers.kv_books import KvBooks, Row, planned_rows
from services.workers.verdicts import Verdicts

VOCABULARY = 50
STOP_TOKEN = 7


def next_token(text: NDArray[np.int32]) -> int:
    """What the model says after ``text``."""
    return synthetic_text.next_token(synthetic_text.text_state(text), VOCABULARY)


def reference(prompt: list[int], sampling: SamplingParams) -> list[int]:
    """The answer without any scheduling."""
    answer: list[int] = []
    while len(answer) < (sampling.max_tokens or 0):
        answer.append(next_token(np.array(prompt + answer, np.int32)))
        if answer[-1] in (sampling.stop_token_ids or ()) and len(answer) >= sampling.min_tokens:
            break
    return answer


@dataclass
class _InFlight:
    plan: SchedulerOutput
    rows: list[Row]
    entered: dict[str, int]
    """Inputs that are drafts."""
    drafts: dict[str, pb.Draft]


class SpPipeline:
    """The scheduler and up to ``stages`` steps in flight, as the engine core's loop keeps them."""

    def __init__(
        self, scheduler: Any, stages: int, block_size: int, random: Random, hit: float, drop: float, hasher: Any
    ) -> None:
        self.scheduler = scheduler
        self._stages = stages
        blocks = scheduler.kv_cache_manager.block_pool.num_gpu_blocks
        self._first, self._last = KvBooks(blocks, block_size), KvBooks(blocks, block_size)
        self._random = random
        self._hit = hit
        self._drop = drop
        self._in_flight: deque[_InFlight] = deque()
        self._kept: dict[str, int] = {}
        self._verdicts = Verdicts()
        self.skipped = 0
        """Rows that the last stage knew to be stale."""
        self.answers: dict[str, list[int]] = {}
        self.finished: set[str] = set()
        self._hasher = hasher

    def add(self, name: str, prompt: list[int], sampling: SamplingParams) -> None:
        headers = {"traceparent": f"00-{'ab' * 16}-{'cd' * 8}-01"}
        request = Request(name, prompt, sampling, None, block_hasher=self._hasher, trace_headers=headers)
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
        rows, entered, drafts = [], {}, {}
        for row in planned_rows(plan):
            draft = self._kept.pop(row.request_id, None)
            if row.request_id not in drafted:
                rows.append(row)
            elif draft is not None:
                rows.append(replace(row, tokens=[draft]))
                entered[row.request_id] = draft
        texts = dict(zip((row.request_id for row in rows), _run(self._first, rows), strict=True))
        for request_id in plan.forerun_speculation.draft_request_ids:
            if request_id in texts:
                drafts[request_id] = self._draft(request_id, texts[request_id])
        return _InFlight(plan, rows, entered, drafts)

    def _draft(self, request_id: str, text: NDArray[np.int32]) -> pb.Draft:
        token = next_token(text)
        if self._random.random() >= self._hit:
            token = (token + 1 + self._random.randrange(VOCABULARY - 1)) % VOCABULARY
        draft = pb.Draft(request_id=request_id, token_id=token, dropped=self._random.random() < self._drop)
        if not draft.dropped:
            self._kept[request_id] = token
        return draft

    def _apply(self, step: _InFlight) -> None:
        self._last.take(step.plan)
        ran = {row.request_id: row.count for row in step.rows}
        stale = self._verdicts.stale(replace(step.plan, num_scheduled_tokens=ran), step.entered)
        rows = [row for row in step.rows if row.request_id not in stale]
        self.skipped += len(stale)
        texts = _run(self._last, rows)
        names = [row.request_id for row in rows]
        sampled = [
            [next_token(text)] if self._last.is_sampled(row) else [] for row, text in zip(rows, texts, strict=True)
        ]
        result = ModelRunnerOutput(names, {name: index for index, name in enumerate(names)}, sampled)
        self._verdicts.sampled(result)
        result.forerun_drafts = step.drafts
        for outputs in self.scheduler.update_from_output(step.plan, result).values():
            for each in outputs.outputs:
                self.answers[each.request_id].extend(each.new_token_ids)
                if each.finish_reason is not None:
                    self.finished.add(each.request_id)


def _run(books: KvBooks, rows: list[Row]) -> list[NDArray[np.int32]]:
    """Each row's whole text after the step."""
    return books.run(rows, [token for row in rows for token in row.tokens])
