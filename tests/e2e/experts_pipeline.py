"""A model of one stage for property tests of the real scheduler with experts: KV slots that remember tokens, a verifier
that compares drafts with what the text says, and a neural drafter that is right as often as it shall be."""

from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
from vllm.v1.request import Request

from services.common.expert import DEPTHS, Expert
from services.scheduler.apex.block import Block, Choice, Why
from services.scheduler.apex.history import RequestHistory
from services.scheduler.apex.policy import Candidate
from services.workers import synthetic_text
from services.workers.kv_books import KvBooks, Row

VOCABULARY = 6
"""So small that n-grams repeat."""
STOP_TOKEN = 5


def next_token(text: Sequence[int]) -> int:
    """What the model says after ``text``."""
    return synthetic_text.next_token(synthetic_text.text_state(np.asarray(text, np.int32)), VOCABULARY)


def reference(prompt: list[int], sampling: SamplingParams) -> list[int]:
    """The answer without any scheduling."""
    answer: list[int] = []
    while len(answer) < (sampling.max_tokens or 0):
        answer.append(next_token(prompt + answer))
        if answer[-1] in (sampling.stop_token_ids or ()):
            break
    return answer


class RandomPolicy:
    """Any expert that can draft, any depth; counts what it is told."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self.observed: list[Block] = []
        self.odds_factors: dict[Expert, float] = {}

    def choose(self, candidates: Sequence[Candidate]) -> list[Choice]:
        return [self._one(each) for each in candidates]

    def _one(self, candidate: Candidate) -> Choice:
        expert = self._random.choice(list(candidate.experts))
        depth = min(self._random.choice(DEPTHS[1:]), candidate.deepest)
        if expert is Expert.PLAIN or not depth:
            return Choice(Expert.PLAIN, 0, Why.NOT_POSSIBLE)
        return Choice(expert, depth, Why.EXPLORED)

    def observe(self, blocks: Sequence[tuple[RequestHistory, Block]]) -> None:
        self.observed.extend(block for _, block in blocks)


class ExpertsPipeline:
    """The scheduler and a stage, in the order of the engine core's loop."""

    def __init__(self, scheduler: Any, block_size: int, random: Random, hit: float, hasher: Any) -> None:
        """``hit``: how often the neural drafter is right."""
        self.scheduler = scheduler
        self._books = KvBooks(scheduler.kv_cache_manager.block_pool.num_gpu_blocks, block_size)
        self._random = random
        self._hit = hit
        self._hasher = hasher
        self._texts: dict[str, list[int]] = {}
        self.answers: dict[str, list[int]] = {}
        self.finished: set[str] = set()
        self.histograms: list[list[int]] = []
        """What ended requests are told of their blocks, by accepted drafts."""
        self.verified = [0, 0]
        """Draft tokens that the stage saw, and those that it accepted, of requests that were not gone by then."""

    @property
    def is_idle(self) -> bool:
        return not self.scheduler.has_requests()

    def add(self, name: str, prompt: list[int], sampling: SamplingParams) -> None:
        self.scheduler.add_request(Request(name, prompt, sampling, None, block_hasher=self._hasher))
        self._texts[name] = list(prompt)
        self.answers[name] = []

    def turn(self) -> None:
        """One step, its outcome, and the drafts that follow it."""
        if not self.scheduler.has_requests():
            return
        plan = self.scheduler.schedule()
        result = self._run(plan)
        for outputs in self.scheduler.update_from_output(plan, result).values():
            for each in outputs.outputs:
                self.answers[each.request_id].extend(each.new_token_ids)
                if each.finish_reason is not None:
                    self.finished.add(each.request_id)
                    self.histograms.append(each.spec_decode_metrics.histogram)
        if plan.total_num_scheduled_tokens:
            self.scheduler.update_draft_token_ids(self._draft(plan))

    def _run(self, plan: SchedulerOutput) -> ModelRunnerOutput:
        self._books.take(plan)
        rows = [self._row(plan, name, start) for name, start in _starts(plan).items()]
        texts = self._books.run(rows, [token for row in rows for token in row.tokens])
        names = [row.request_id for row in rows]
        sampled = []
        for row, text in zip(rows, texts, strict=True):
            drafts = plan.scheduled_spec_decode_tokens.get(row.request_id, [])
            said = self._verify(text.tolist(), len(drafts)) if self._books.is_sampled(row) else []
            self._texts[row.request_id].extend(said)
            self.verified[0] += len(drafts)
            self.verified[1] += max(0, len(said) - 1)
            sampled.append(said)
        return ModelRunnerOutput(names, {name: index for index, name in enumerate(names)}, sampled)

    def _row(self, plan: SchedulerOutput, name: str, start: int) -> Row:
        count = plan.num_scheduled_tokens[name]
        drafts = plan.scheduled_spec_decode_tokens.get(name, [])
        known = self._texts[name][start : start + count - len(drafts)]
        return Row(name, start, count, [*known, *drafts])

    @staticmethod
    def _verify(text: list[int], drafts: int) -> list[int]:
        said = []
        for end in range(len(text) - drafts, len(text) + 1):
            said.append(next_token(text[:end]))
            if end < len(text) and said[-1] != text[end]:
                break
        return said

    def _draft(self, plan: SchedulerOutput) -> DraftTokenIds:
        depth = plan.forerun_draft_depth
        if not depth or self._random.random() < 0.05:
            return DraftTokenIds([], [])
        names = list(plan.num_scheduled_tokens)
        return DraftTokenIds(names, [self._drafts_of(name, depth) for name in names])

    def _drafts_of(self, name: str, depth: int) -> list[int]:
        text = list(self._texts[name])
        for _ in range(depth):
            token = next_token(text)
            wrong = self._random.random() >= self._hit
            text.append((token + 1 + self._random.randrange(VOCABULARY - 1)) % VOCABULARY if wrong else token)
        return text[-depth:]


def _starts(plan: SchedulerOutput) -> dict[str, int]:
    starts = {new.req_id: new.num_computed_tokens for new in plan.scheduled_new_reqs}
    cached = plan.scheduled_cached_reqs
    return starts | dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
