"""What waits to be sent to one router: bounded, lossless, and drained a batch at a time.

Requests push events as the engine makes them; the session's writer takes all of them at once when it wakes, so one
engine step of 32 requests is one message. While the router does not read, deltas of the same choice are merged
(nothing is lost, the router sees fewer and longer ones), and beyond a byte limit the session is given up.
"""

import asyncio
from dataclasses import dataclass, field

from services.common.types import Delta, GenerationEvent, PromptLogprobs, ReplicaState

MAX_MERGED_TOKENS = 1024
"""Merging stops here, so that no delta outgrows a message."""

_EVENT_BYTES, _TOKEN_BYTES, _CANDIDATE_BYTES = 200, 36, 150
"""What events, tokens and logprob candidates cost in this process, roughly."""


@dataclass(frozen=True, slots=True)
class StateNotice:
    """The replica's state changed."""

    state: ReplicaState
    reason: str


@dataclass(slots=True)
class Outbound:
    """Everything that was waiting. The notice goes first: a router must not retry on a replica that just went."""

    notice: StateNotice | None = None
    events: list[tuple[str, GenerationEvent]] = field(default_factory=list)


class EventBuffer:
    """One router's outgoing events; used from one event loop."""

    def __init__(self, event_limit: int, byte_limit: int) -> None:
        """``event_limit``: events beyond which deltas are merged. ``byte_limit``: beyond it the buffer overflows."""
        self._event_limit = event_limit
        self._byte_limit = byte_limit
        self._merge_at = event_limit
        self._bytes = 0
        self._waiting = Outbound()
        self._wake = asyncio.Event()
        self._closed = False
        self.overflowed = asyncio.Event()
        """Set when the router fell behind by more than the byte limit; later events are dropped."""
        self.merged = 0
        """Deltas merged into an earlier one so far."""

    def push(self, request_id: str, event: GenerationEvent) -> None:
        """Adds one event."""
        if self._closed or self.overflowed.is_set():
            return
        self._bytes += _size(event)
        if self._bytes > self._byte_limit:
            self.overflowed.set()
            return
        self._waiting.events.append((request_id, event))
        if len(self._waiting.events) > self._merge_at:
            self._merge()
        self._wake.set()

    def notify(self, notice: StateNotice) -> None:
        """Tells the router of the replica's state; only the newest that was not taken yet is kept."""
        if not self._closed:
            self._waiting.notice = notice
            self._wake.set()

    def close(self) -> None:
        """Nothing is added any more; what waits can still be taken."""
        self._closed = True
        self._wake.set()

    async def take(self) -> Outbound | None:
        """Waits for something and takes everything; None once closed and empty."""
        await self._wake.wait()
        taken, self._waiting = self._waiting, Outbound()
        self._bytes, self._merge_at = 0, self._event_limit
        if not self._closed:
            self._wake.clear()
        elif taken.notice is None and not taken.events:
            return None
        return taken

    def _merge(self) -> None:
        """Merges the deltas of each choice, in order.

        The next merge is due when the rest has doubled: constant cost an event however long the router sleeps.
        """
        runs: dict[tuple[str, int], _Run] = {}
        kept: list[tuple[str, GenerationEvent | _Run]] = []
        for request_id, event in self._waiting.events:
            if not isinstance(event, Delta):
                kept.append((request_id, event))
                continue
            run = runs.get((request_id, event.index))
            if run is None or not run.has_room_for(event):
                run = runs[request_id, event.index] = _Run()
                kept.append((request_id, run))
            run.add(event)
        self.merged += len(self._waiting.events) - len(kept)
        self._waiting.events = [(id_, event.joined() if isinstance(event, _Run) else event) for id_, event in kept]
        self._bytes = sum(_size(event) for _, event in self._waiting.events)
        self._merge_at = max(self._event_limit, 2 * len(kept))


class _Run:
    """Deltas of one choice that become one."""

    def __init__(self) -> None:
        self._deltas: list[Delta] = []
        self._tokens = 0

    def has_room_for(self, delta: Delta) -> bool:
        return self._tokens + len(delta.token_ids) <= MAX_MERGED_TOKENS

    def add(self, delta: Delta) -> None:
        self._deltas.append(delta)
        self._tokens += len(delta.token_ids)

    def joined(self) -> Delta:
        deltas = self._deltas
        if len(deltas) == 1:
            return deltas[0]
        return Delta(
            deltas[0].index,
            "".join(delta.text for delta in deltas),
            tuple(token_id for delta in deltas for token_id in delta.token_ids),
            tuple(position for delta in deltas for position in delta.logprobs),
        )


def _size(event: GenerationEvent) -> int:
    if isinstance(event, Delta):
        size = _EVENT_BYTES + len(event.text) + _TOKEN_BYTES * len(event.token_ids)
        return size + _CANDIDATE_BYTES * sum(map(len, event.logprobs)) if event.logprobs else size
    if isinstance(event, PromptLogprobs):
        return _EVENT_BYTES + _CANDIDATE_BYTES * sum(map(len, event.positions))
    return 2 * _EVENT_BYTES + len(event.message)
