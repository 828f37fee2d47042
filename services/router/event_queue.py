"""A request's events on their way from a replica's session to the request's reader.

Bounded without loss: a reader that lags finds its deltas merged, one a choice, instead of a growing queue. The bytes
are bounded by the answer itself, which the request's own token limit bounds.
"""

import asyncio

from services.common.errors import RequestEndedError
from services.common.types import Delta, Finished, GenerationEvent, PromptLogprobs

MERGE_ABOVE = 32
"""Events that may wait as they came; more are merged."""


class EventQueue:
    """One writer and one reader on the same event loop. The writer never waits."""

    def __init__(self, merge_above: int = MERGE_ABOVE) -> None:
        self._merge_above = merge_above
        self._limit = merge_above
        self._events: list[GenerationEvent] = []
        self._error: RequestEndedError | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._ended = False

    @property
    def ended(self) -> bool:
        """The last event, or an error, has been put in; later ones are ignored."""
        return self._ended

    def put(self, event: GenerationEvent) -> None:
        """Adds an event; merges when the reader lags."""
        if self._ended:
            return
        self._ended = isinstance(event, Finished)
        self._events.append(event)
        if len(self._events) > self._limit:
            self._events = merge_events(self._events)
            # Many choices leave many deltas; merging again at every event would cost more than it saves.
            self._limit = max(self._merge_above, 2 * len(self._events))
        self._wake()

    def fail(self, error: RequestEndedError) -> None:
        """Ends the queue with an error, which the reader meets after the events already put in."""
        if self._ended:
            return
        self._ended = True
        self._error = error
        self._wake()

    async def get(self) -> list[GenerationEvent]:
        """All events that wait, at least one. Raises the error of ``fail`` once they are taken."""
        while not self._events:
            if self._error is not None:
                raise self._error
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        events, self._events = self._events, []
        self._limit = self._merge_above
        return events

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def merge_events(events: list[GenerationEvent]) -> list[GenerationEvent]:
    """The same output in the fewest events: prompt log probabilities, one delta a choice, the end."""
    prompts = [event for event in events if isinstance(event, PromptLogprobs)]
    ends = [event for event in events if isinstance(event, Finished)]
    by_choice: dict[int, list[Delta]] = {}
    for event in events:
        if isinstance(event, Delta):
            by_choice.setdefault(event.index, []).append(event)
    return [*prompts, *map(merge_deltas, by_choice.values()), *ends]


def merge_deltas(deltas: list[Delta]) -> Delta:
    """Consecutive deltas of one choice as one. At least one must be given."""
    if len(deltas) == 1:
        return deltas[0]
    return Delta(
        index=deltas[0].index,
        text="".join(delta.text for delta in deltas),
        token_ids=tuple(token for delta in deltas for token in delta.token_ids),
        logprobs=tuple(position for delta in deltas for position in delta.logprobs),
    )
