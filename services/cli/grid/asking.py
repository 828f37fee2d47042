"""One request, and what its client saw of it."""

import time
from dataclasses import dataclass

from services.client import ForerunClient
from services.client.types import ChatMessage
from services.common.errors import RequestEndedError
from services.common.outcome import Outcome
from services.common.types import Delta, Finished, SamplingOptions, Usage
from services.common.workloads.prompt import WorkloadPrompt


@dataclass(frozen=True, slots=True)
class Answered:
    """Times in seconds from sending the request."""

    seconds: float
    """To the last token."""
    first_token_s: float
    tokens: int
    drafted: int
    accepted: int
    blocks: int
    """Verifying steps with drafts."""
    preemptions: int


async def ask(
    client: ForerunClient,
    prompt: WorkloadPrompt,
    tokens: int,
    *,
    expert: str | None = None,
    depth: int | None = None,
    request_id: str = "",
) -> Answered:
    """A greedy answer of at most ``tokens`` tokens. ``expert``, ``depth``: pinned; None: the replica's choice.

    Raises:
        RequestEndedError: it did not end well.
    """
    sampling = SamplingOptions(temperature=0.0, max_tokens=tokens, expert=expert, draft_tokens=depth)
    turns = [ChatMessage(turn.role, turn.content) for turn in prompt.messages]
    sent = time.perf_counter()
    first = last = None
    async for event in client.generate(turns, sampling, request_id=request_id):
        if isinstance(event, Delta) and event.token_ids:
            last = time.perf_counter()
            first = first or last
        elif isinstance(event, Finished):
            if not event.outcome.is_success:
                raise RequestEndedError(event.outcome, event.message)
            end = last or time.perf_counter()
            return _answered(event.usage, end - sent, (first or end) - sent)
    raise RequestEndedError(Outcome.INTERNAL, "a stream ended without an end")


def _answered(usage: Usage, seconds: float, first_token_s: float) -> Answered:
    spoken = usage.speculation
    return Answered(
        seconds=seconds,
        first_token_s=first_token_s,
        tokens=usage.output_tokens,
        drafted=0 if spoken is None else spoken.draft_tokens,
        accepted=0 if spoken is None else spoken.accepted_tokens,
        blocks=0 if spoken is None else sum(spoken.blocks_by_accepted),
        preemptions=usage.preemptions,
    )
