"""vLLM's ``RequestOutput`` to our events, for one request; called once a step, so it does little.

Relies on (vLLM 0.32): with DELTA output, ``text``, ``token_ids`` and ``logprobs`` hold the new part only and
``prompt_logprobs`` comes once; logprob dictionaries have the sampled token first; ``metrics`` holds wall-clock arrival
and monotonic engine-core times.
"""

import time
from collections.abc import Iterator, Mapping, Sequence

from vllm.logprobs import Logprob
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.v1.metrics.stats import RequestSpecDecodeMetrics, RequestStateStats

from services.common.errors import RequestEndedError
from services.common.outcome import Outcome
from services.common.types import (
    ChoiceEnd,
    Delta,
    Finished,
    GenerationEvent,
    PositionLogprobs,
    PromptLogprobs,
    SpeculationUsage,
    TokenLogprob,
    Usage,
)

_OUTCOMES = {
    "stop": Outcome.STOP,
    "length": Outcome.LENGTH,
    # An answer that repeats itself is stopped by the request's own wish.
    "repetition": Outcome.STOP,
}


class OutputTranslator:
    """Keeps what has to be remembered from one output to the next."""

    def __init__(self, choices: int) -> None:
        """``choices``: answers that the request asked for."""
        self._choices = choices
        self._ends: list[ChoiceEnd] = []
        self._output_tokens = 0
        self._sent_prompt_logprobs = False
        self._metrics: dict[int, RequestStateStats] = {}
        self._speculation: list[RequestSpecDecodeMetrics] = []
        """Of each choice that has ended, where the engine speculates."""

    def events(self, output: RequestOutput) -> Iterator[GenerationEvent]:
        """What is new in ``output``; a ``Finished`` with its last choice.

        Raises ``RequestEndedError`` (INTERNAL) when the engine gave up on the request.
        """
        if output.prompt_logprobs and not self._sent_prompt_logprobs:
            self._sent_prompt_logprobs = True
            yield PromptLogprobs(tuple(_position(position) for position in output.prompt_logprobs))
        for completion in output.outputs:
            token_ids = completion.token_ids
            if token_ids or completion.text:
                self._output_tokens += len(token_ids)
                yield Delta(completion.index, completion.text, tuple(token_ids), _positions(completion))
            if completion.finish_reason is not None:
                self._ends.append(_choice_end(completion))
                if completion.spec_decode_metrics is not None:
                    self._speculation.append(completion.spec_decode_metrics)
        if output.metrics is not None and self._choices > 1:
            self._metrics[output.outputs[0].index] = output.metrics
        if output.finished:
            ends = tuple(sorted(self._ends, key=lambda end: end.index))
            yield Finished(self._ends[-1].outcome, ends, self._usage(output))

    def _usage(self, output: RequestOutput) -> Usage:
        prompt_tokens = len(output.prompt_token_ids or ())
        cached_tokens = output.num_cached_tokens or 0
        metrics = output.metrics
        if metrics is None:
            return Usage(prompt_tokens, self._output_tokens, cached_tokens)
        of_choices = list(self._metrics.values()) or [metrics]
        return Usage(
            prompt_tokens=prompt_tokens,
            output_tokens=self._output_tokens,
            cached_tokens=cached_tokens,
            preemptions=sum(choice.num_preemptions for choice in of_choices),
            queue_seconds=min(choice.scheduled_ts - choice.queued_ts for choice in of_choices),
            first_token_seconds=min(choice.first_token_latency for choice in of_choices),
            total_seconds=time.time() - metrics.arrival_time,
            speculation=_speculation(self._speculation),
        )


def _speculation(of_choices: Sequence[RequestSpecDecodeMetrics]) -> SpeculationUsage | None:
    if not of_choices:
        return None
    blocks = zip(*(each.histogram for each in of_choices), strict=True)
    return SpeculationUsage(sum(each.num_draft_tokens for each in of_choices), tuple(map(sum, blocks)))


def _choice_end(completion: CompletionOutput) -> ChoiceEnd:
    outcome = _OUTCOMES.get(str(completion.finish_reason))
    if outcome is None:
        raise RequestEndedError(Outcome.INTERNAL, f"the engine ended the request with {completion.finish_reason!r}")
    return ChoiceEnd(completion.index, outcome, completion.stop_reason)


def _positions(completion: CompletionOutput) -> tuple[PositionLogprobs, ...]:
    if not completion.logprobs:
        return ()
    positions: Sequence[Mapping[int, Logprob] | None] = completion.logprobs
    return tuple(_position(position) for position in positions)


def _position(position: Mapping[int, Logprob] | None) -> PositionLogprobs:
    return tuple(
        TokenLogprob(token_id, entry.logprob, entry.rank, (entry.decoded_token or "").encode("utf-8", "replace"))
        for token_id, entry in (position or {}).items()
    )
