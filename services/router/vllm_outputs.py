"""The domain's events as the ``RequestOutput`` objects that vLLM's HTTP app reads.

vLLM asks for one of three kinds: DELTA (what is new), CUMULATIVE (all so far) and FINAL_ONLY (all, once).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from vllm.logprobs import Logprob
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.metrics.stats import RequestSpecDecodeMetrics, RequestStateStats

from services.common.types import (
    ChoiceEnd,
    Delta,
    Finished,
    PositionLogprobs,
    PromptLogprobs,
    SpeculationUsage,
    Usage,
)
from services.router.event_queue import merge_deltas
from services.router.request import RouterEvent

Position = dict[int, Logprob]


@dataclass(slots=True)
class _Choice:
    """Output of one choice that has not been handed out, or with CUMULATIVE and FINAL_ONLY all of it."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[Position] = field(default_factory=list)
    cumulative: float = 0.0


class OutputBuilder:
    """Of one request. ``take`` is called with each batch of its events, in order."""

    def __init__(
        self, request_id: str, prompt_token_ids: list[int], prompt: str | None, params: SamplingParams
    ) -> None:
        self._request_id = request_id
        self._prompt = prompt
        self._prompt_token_ids = prompt_token_ids
        self._kind = params.output_kind
        self._wants_logprobs = params.logprobs is not None or bool(params.logprob_token_ids)
        self._choices = [_Choice() for _ in range(params.n)]
        self._prompt_logprobs: list[Position | None] | None = None

    def take(self, events: Sequence[RouterEvent]) -> RequestOutput | None:
        """What the app is to see of these events; None when there is nothing (yet)."""
        deltas: dict[int, list[Delta]] = {}
        finished: Finished | None = None
        for event in events:
            match event:
                case Delta():
                    deltas.setdefault(event.index, []).append(event)
                case PromptLogprobs():
                    self._prompt_logprobs = [to_position(position) for position in event.positions]
                case Finished():
                    finished = event
        for index, parts in deltas.items():
            self._add(self._choices[index], merge_deltas(parts))
        if finished is not None:
            return self._final(finished)
        if self._kind is RequestOutputKind.FINAL_ONLY or not deltas:
            return None
        return self._output([self._completion(index, None) for index in deltas], None)

    @staticmethod
    def _add(choice: _Choice, delta: Delta) -> None:
        choice.text += delta.text
        choice.token_ids.extend(delta.token_ids)
        for position in delta.logprobs:
            choice.logprobs.append(to_position(position) or {})
            choice.cumulative += position[0].logprob if position else 0.0

    def _final(self, finished: Finished) -> RequestOutput:
        ends = {end.index: end for end in finished.choices}
        outputs = [self._completion(index, ends.get(index)) for index in range(len(self._choices))]
        if finished.usage.speculation is not None and len(outputs) == 1:
            # vLLM's app tells of it for requests of one choice.
            outputs[0].spec_decode_metrics = to_speculation_metrics(finished.usage.speculation)
        return self._output(outputs, finished.usage)

    def _completion(self, index: int, end: ChoiceEnd | None) -> CompletionOutput:
        choice = self._choices[index]
        output = CompletionOutput(
            index=index,
            text=choice.text,
            token_ids=choice.token_ids,
            cumulative_logprob=choice.cumulative if self._wants_logprobs else None,
            logprobs=choice.logprobs if self._wants_logprobs else None,
            finish_reason=None if end is None else end.outcome.value,
            stop_reason=None if end is None else end.stop,
        )
        if self._kind is RequestOutputKind.DELTA:
            # Handed out; a later end without new output must not show it again.
            self._choices[index] = _Choice(cumulative=choice.cumulative)
        elif end is None:
            output.token_ids, output.logprobs = list(choice.token_ids), output.logprobs and list(choice.logprobs)
        return output

    def _output(self, outputs: list[CompletionOutput], usage: Usage | None) -> RequestOutput:
        prompt_logprobs = self._prompt_logprobs
        if self._kind is RequestOutputKind.DELTA:
            self._prompt_logprobs = None
        return RequestOutput(
            request_id=self._request_id,
            prompt=self._prompt,
            prompt_token_ids=self._prompt_token_ids,
            prompt_logprobs=prompt_logprobs,
            outputs=outputs,
            finished=usage is not None,
            metrics=None if usage is None else to_stats(usage),
            num_cached_tokens=None if usage is None else usage.cached_tokens,
        )


def to_position(candidates: PositionLogprobs) -> Position | None:
    """Candidates by token id, the sampled one first; None for a prompt's first token."""
    if not candidates:
        return None
    return {
        candidate.token_id: Logprob(candidate.logprob, candidate.rank, candidate.token.decode("utf-8", "replace"))
        for candidate in candidates
    }


def to_speculation_metrics(speculation: SpeculationUsage) -> RequestSpecDecodeMetrics:
    """vLLM's count of a request's draft tokens."""
    blocks = speculation.blocks_by_accepted
    return RequestSpecDecodeMetrics(len(blocks) - 1, list(blocks), speculation.draft_tokens)


def to_stats(usage: Usage) -> RequestStateStats:
    """vLLM's time stamps; only their differences mean something."""
    queued = 1.0
    return RequestStateStats(
        num_generation_tokens=usage.output_tokens,
        num_preemptions=usage.preemptions,
        queued_ts=queued,
        scheduled_ts=0.0 if usage.queue_seconds is None else queued + usage.queue_seconds,
        first_token_ts=0.0 if usage.first_token_seconds is None else queued + usage.first_token_seconds,
        last_token_ts=0.0 if usage.total_seconds is None else queued + usage.total_seconds,
        first_token_latency=usage.first_token_seconds or 0.0,
    )
