"""One submission inside the fake engine: its sequences, their KV blocks, and what the submitter gets to see."""

import asyncio
import math
import time

from services.common.types import ChoiceEnd, Delta, Finished, GenerationEvent, PromptLogprobs, Submission, Usage
from services.scheduler.config import FakeEngineConfig
from services.scheduler.engine import EngineLostError
from services.scheduler.fake_answer import Answer, candidates


class FakeRequest:
    """One submission in the engine."""

    def __init__(self, submission: Submission, config: FakeEngineConfig) -> None:
        self.submission = submission
        self.sequences = [FakeSequence(self, index, config) for index in range(submission.sampling.n)]
        self.events: asyncio.Queue[GenerationEvent | EngineLostError] = asyncio.Queue()
        self.preemptions = 0
        self._vocab_size = config.vocab_size
        self._arrived = time.monotonic()
        self._scheduled: float | None = None
        self._first_token: float | None = None
        self._ends: dict[int, ChoiceEnd] = {}
        self._gathered: dict[int, list[Delta]] = {}

    def note_scheduled(self) -> None:
        if self._scheduled is None:
            self._scheduled = time.monotonic()

    def emit(self, delta: Delta, end: ChoiceEnd | None) -> None:
        if self._first_token is None:
            self._first_token = time.monotonic()
            self._emit_prompt_logprobs()
        self._emit_delta(delta, end is not None)
        if end is not None:
            self._ends[end.index] = end
            if len(self._ends) == len(self.sequences):
                choices = tuple(self._ends[index] for index in sorted(self._ends))
                self.events.put_nowait(Finished(end.outcome, choices, self._usage()))

    def _emit_delta(self, delta: Delta, last: bool) -> None:
        if not self.submission.final_only:
            self.events.put_nowait(delta)
            return
        gathered = self._gathered.setdefault(delta.index, [])
        gathered.append(delta)
        if last:
            text = "".join(part.text for part in gathered)
            token_ids = tuple(id_ for part in gathered for id_ in part.token_ids)
            logprobs = tuple(position for part in gathered for position in part.logprobs)
            self.events.put_nowait(Delta(delta.index, text, token_ids, logprobs))

    def _emit_prompt_logprobs(self) -> None:
        others = self.submission.sampling.prompt_logprobs
        if others is not None:
            prompt = self.submission.prompt_token_ids
            known = tuple(candidates(id_, max(others, 0), self._vocab_size) for id_ in prompt[1:])
            self.events.put_nowait(PromptLogprobs(((), *known)))

    def _usage(self) -> Usage:
        now = time.monotonic()
        return Usage(
            prompt_tokens=len(self.submission.prompt_token_ids),
            output_tokens=sum(sequence.answer.tokens for sequence in self.sequences),
            preemptions=self.preemptions,
            queue_seconds=(self._scheduled or now) - self._arrived,
            first_token_seconds=(self._first_token or now) - self._arrived,
            total_seconds=now - self._arrived,
        )


class FakeSequence:
    """One choice of a request: its answer, its place in prefill and its KV blocks."""

    def __init__(self, request: FakeRequest, index: int, config: FakeEngineConfig) -> None:
        self.request = request
        self.blocks = 0
        self.prefilled = 0
        self._prompt_len = len(request.submission.prompt_token_ids)
        self._block_size = config.block_size_tokens
        self.answer = Answer(
            request.submission,
            index,
            vocab_size=config.vocab_size,
            max_model_len=config.max_model_len,
            mean_tokens=config.mean_answer_tokens,
        )

    @property
    def length(self) -> int:
        """Tokens so far, the prompt's included."""
        return self._prompt_len + self.answer.tokens

    def blocks_for(self, tokens: int) -> int:
        return math.ceil(tokens / self._block_size)

    def prefill(self, tokens: int) -> bool:
        """Takes up to ``tokens`` of what is not computed yet; whether some is left for later steps."""
        if self.prefilled < self.length:
            self.prefilled = min(self.length, self.prefilled + tokens)
            return self.prefilled < self.length
        self.prefilled += 1
        return False
