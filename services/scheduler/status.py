"""The replica's one state, from three independent facts, and those who want to hear of it."""

import asyncio
from collections.abc import Callable

from services.common.errors import unavailable
from services.common.types import ReplicaState

StateListener = Callable[[ReplicaState, str], None]
"""Called with the new state and a reason for people; must not block or raise."""

RETRY_WHEN_STALLED_MS = 1000
"""A stalled replica may come back; others are better asked at once."""


class ReplicaStatus:
    """The worst fact wins: LOST, then DRAINING, then STALLED, else SERVING. LOST and DRAINING are for good."""

    def __init__(self) -> None:
        self._lost = ""
        self._draining = ""
        self._stalled = ""
        self._listeners: list[StateListener] = []
        self.was_lost = asyncio.Event()
        """Set once the engine is lost."""

    @property
    def state(self) -> ReplicaState:
        if self._lost:
            return ReplicaState.LOST
        if self._draining:
            return ReplicaState.DRAINING
        return ReplicaState.STALLED if self._stalled else ReplicaState.SERVING

    @property
    def reason(self) -> str:
        """Why the state is what it is; empty while serving."""
        return self._lost or self._draining or self._stalled

    def check_serving(self) -> None:
        """Raises ``RequestEndedError`` (REJECTED_UNAVAILABLE) unless new requests are taken."""
        if self.state is not ReplicaState.SERVING:
            raise unavailable(f"the replica is {self.state}: {self.reason}", RETRY_WHEN_STALLED_MS)

    def lose(self, reason: str) -> None:
        """The engine is dead."""
        self._change(lost=self._lost or reason)
        self.was_lost.set()

    def drain(self, reason: str) -> None:
        """Take nothing new from now on."""
        self._change(draining=self._draining or reason)

    def stall(self, reason: str) -> None:
        """Something that should answer does not; it may come back."""
        self._change(stalled=reason)

    def recover(self) -> None:
        """Everything answers again."""
        self._change(stalled="")

    def add_listener(self, listener: StateListener) -> None:
        """``listener`` hears of every later change."""
        self._listeners.append(listener)

    def remove_listener(self, listener: StateListener) -> None:
        """The reverse of ``add_listener``."""
        self._listeners.remove(listener)

    def _change(self, lost: str | None = None, draining: str | None = None, stalled: str | None = None) -> None:
        before = self.state
        self._lost = self._lost if lost is None else lost
        self._draining = self._draining if draining is None else draining
        self._stalled = self._stalled if stalled is None else stalled
        if self.state is not before:
            for listener in list(self._listeners):
                listener(self.state, self.reason)
