"""What a request yields, to protobuf and back: deltas, log probabilities, the end, and the messages that carry them."""

from collections.abc import Sequence
from dataclasses import asdict

from forerun.inference.v1 import generation_pb2, outcome_pb2, service_pb2
from forerun.scheduler.v1 import service_pb2 as scheduler_pb2

from services.common.convert_sampling import valid_text
from services.common.outcome import Outcome
from services.common.types import (
    ChoiceEnd,
    Delta,
    ExpertChoice,
    Finished,
    GenerationEvent,
    PositionLogprobs,
    PromptLogprobs,
    ScoredExpert,
    SpeculationUsage,
    TokenLogprob,
    Usage,
)


def delta_to_proto(delta: Delta) -> generation_pb2.Delta:
    """New output of one choice."""
    return generation_pb2.Delta(
        index=delta.index,
        text=valid_text(delta.text),
        token_ids=delta.token_ids,
        logprobs=_positions_to_proto(delta.logprobs),
    )


def delta_from_proto(delta: generation_pb2.Delta) -> Delta:
    """New output of one choice."""
    return Delta(delta.index, delta.text, tuple(delta.token_ids), _positions_from_proto(delta.logprobs))


def prompt_logprobs_to_proto(logprobs: PromptLogprobs) -> service_pb2.PromptLogprobs:
    """Log probabilities of a prompt."""
    return service_pb2.PromptLogprobs(positions=_positions_to_proto(logprobs.positions))


def prompt_logprobs_from_proto(logprobs: service_pb2.PromptLogprobs) -> PromptLogprobs:
    """Log probabilities of a prompt."""
    return PromptLogprobs(_positions_from_proto(logprobs.positions))


def _positions_to_proto(positions: Sequence[PositionLogprobs]) -> list[generation_pb2.PositionLogprobs]:
    return [
        generation_pb2.PositionLogprobs(
            candidates=[
                generation_pb2.TokenLogprob(
                    token_id=candidate.token_id, logprob=candidate.logprob, rank=candidate.rank, token=candidate.token
                )
                for candidate in position
            ]
        )
        for position in positions
    ]


def _positions_from_proto(positions: Sequence[generation_pb2.PositionLogprobs]) -> tuple[PositionLogprobs, ...]:
    return tuple(
        tuple(
            TokenLogprob(
                candidate.token_id,
                candidate.logprob,
                candidate.rank if candidate.HasField("rank") else None,
                candidate.token,
            )
            for candidate in position.candidates
        )
        for position in positions
    )


def finished_to_proto(finished: Finished) -> generation_pb2.Finished:
    """The end of a request."""
    return generation_pb2.Finished(
        outcome=_outcome_to_proto(finished.outcome),
        choices=[_choice_end_to_proto(choice) for choice in finished.choices],
        usage=usage_to_proto(finished.usage),
        message=valid_text(finished.message),
        retry_after_ms=finished.retry_after_ms,
        invalid_field=valid_text(finished.invalid_field),
    )


def finished_from_proto(finished: generation_pb2.Finished) -> Finished:
    """The end of a request."""
    return Finished(
        outcome=Outcome.from_proto(finished.outcome),
        choices=tuple(_choice_end_from_proto(choice) for choice in finished.choices),
        usage=usage_from_proto(finished.usage),
        message=finished.message,
        retry_after_ms=finished.retry_after_ms if finished.HasField("retry_after_ms") else None,
        invalid_field=finished.invalid_field,
    )


def _choice_end_to_proto(choice: ChoiceEnd) -> generation_pb2.ChoiceEnd:
    end = generation_pb2.ChoiceEnd(index=choice.index, outcome=_outcome_to_proto(choice.outcome))
    if isinstance(choice.stop, str):
        end.stop_string = valid_text(choice.stop)
    elif choice.stop is not None:
        end.stop_token_id = choice.stop
    return end


def _choice_end_from_proto(choice: generation_pb2.ChoiceEnd) -> ChoiceEnd:
    stop: str | int | None = None
    if choice.HasField("stop_string"):
        stop = choice.stop_string
    elif choice.HasField("stop_token_id"):
        stop = choice.stop_token_id
    return ChoiceEnd(choice.index, Outcome.from_proto(choice.outcome), stop)


def _outcome_to_proto(outcome: Outcome) -> outcome_pb2.Outcome.ValueType:
    return outcome_pb2.Outcome.Value(f"OUTCOME_{outcome.name}")


def usage_to_proto(usage: Usage) -> generation_pb2.Usage:
    """Tokens and times of a request."""
    return generation_pb2.Usage(
        prompt_tokens=usage.prompt_tokens,
        output_tokens=usage.output_tokens,
        cached_tokens=usage.cached_tokens,
        preemptions=usage.preemptions,
        queue_seconds=usage.queue_seconds,
        first_token_seconds=usage.first_token_seconds,
        total_seconds=usage.total_seconds,
        speculation=None
        if usage.speculation is None
        else generation_pb2.SpeculationUsage(
            draft_tokens=usage.speculation.draft_tokens, blocks_by_accepted=usage.speculation.blocks_by_accepted
        ),
    )


def usage_from_proto(usage: generation_pb2.Usage) -> Usage:
    """Tokens and times of a request."""
    return Usage(
        prompt_tokens=usage.prompt_tokens,
        output_tokens=usage.output_tokens,
        cached_tokens=usage.cached_tokens,
        preemptions=usage.preemptions,
        queue_seconds=usage.queue_seconds if usage.HasField("queue_seconds") else None,
        first_token_seconds=usage.first_token_seconds if usage.HasField("first_token_seconds") else None,
        total_seconds=usage.total_seconds if usage.HasField("total_seconds") else None,
        speculation=SpeculationUsage(usage.speculation.draft_tokens, tuple(usage.speculation.blocks_by_accepted))
        if usage.HasField("speculation")
        else None,
    )


def event_to_proto(request_id: str, event: GenerationEvent) -> scheduler_pb2.RequestEvent:
    """One event of one request, as it travels from replica to router."""
    match event:
        case Delta():
            return scheduler_pb2.RequestEvent(request_id=request_id, delta=delta_to_proto(event))
        case PromptLogprobs():
            return scheduler_pb2.RequestEvent(request_id=request_id, prompt_logprobs=prompt_logprobs_to_proto(event))
        case Finished():
            return scheduler_pb2.RequestEvent(request_id=request_id, finished=finished_to_proto(event))


def event_from_proto(event: scheduler_pb2.RequestEvent) -> GenerationEvent | None:
    """The event of ``event.request_id``; None for a kind that only a newer peer knows."""
    match event.WhichOneof("event"):
        case "delta":
            return delta_from_proto(event.delta)
        case "prompt_logprobs":
            return prompt_logprobs_from_proto(event.prompt_logprobs)
        case "finished":
            return finished_from_proto(event.finished)
        case _:
            return None


def response_to_proto(event: GenerationEvent) -> service_pb2.GenerateResponse:
    """One event of the public stream."""
    match event:
        case Delta():
            return service_pb2.GenerateResponse(delta=delta_to_proto(event))
        case PromptLogprobs():
            return service_pb2.GenerateResponse(prompt_logprobs=prompt_logprobs_to_proto(event))
        case Finished():
            return service_pb2.GenerateResponse(finished=finished_to_proto(event))


def response_from_proto(response: service_pb2.GenerateResponse) -> GenerationEvent | None:
    """The event of a public response; None for ``started`` and for a kind that only a newer peer knows."""
    match response.WhichOneof("event"):
        case "delta":
            return delta_from_proto(response.delta)
        case "prompt_logprobs":
            return prompt_logprobs_from_proto(response.prompt_logprobs)
        case "finished":
            return finished_from_proto(response.finished)
        case _:
            return None


def expert_choice_to_proto(choice: ExpertChoice) -> service_pb2.ExpertChoice:
    """Who drafts, and why."""
    return service_pb2.ExpertChoice(
        expert=choice.expert,
        first_draft_tokens=choice.first_draft_tokens,
        reason=choice.reason,
        profile=choice.profile,
        scores=[service_pb2.ScoredExpert(**asdict(score)) for score in choice.scores],
    )


def expert_choice_from_proto(choice: service_pb2.ExpertChoice) -> ExpertChoice:
    """Who drafts, and why."""
    return ExpertChoice(
        expert=choice.expert,
        first_draft_tokens=choice.first_draft_tokens if choice.HasField("first_draft_tokens") else None,
        reason=choice.reason,
        profile=choice.profile,
        scores=tuple(
            ScoredExpert(each.expert, each.draft_tokens, each.utility, each.speedup, each.wasted)
            for each in choice.scores
        ),
    )
