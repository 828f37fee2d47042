"""The contract between the front and an engine. Two engines keep it: vLLM's and the fake one."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Protocol

from services.common.types import GenerationEvent, ReplicaInfo, Submission


class EngineLostError(Exception):
    """The engine is dead; no request of this process will ever progress again."""


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """Sequences and KV blocks as of the engine's newest step."""

    running: int
    waiting: int
    free_blocks: int
    total_blocks: int


class Engine(Protocol):
    """Turns prompts into tokens. Life: ``start`` -> ``generate`` any number of times, at once -> ``stop``.

    All methods belong to one event loop.
    """

    async def start(self) -> None:
        """Ready to generate when it returns.

        Raises:
            ConfigError: the configuration cannot work.
            EngineLostError: the engine did not come up.
        """
        ...

    def generate(self, submission: Submission) -> AsyncGenerator[GenerationEvent, None]:
        """Events of one request: deltas, then exactly one ``Finished`` with STOP or LENGTH.

        ``submission.request_id`` must be unique among live requests. Closing the generator early, or cancelling the
        task that awaits it, aborts the request and frees its blocks.

        Raises:
            RequestEndedError: this request cannot go on; the engine is unharmed.
            EngineLostError: the engine died.
        """
        ...

    def info(self) -> ReplicaInfo:
        """What the engine is; its load, and the state SERVING."""
        ...

    def load(self) -> EngineLoad:
        """The newest load; cheap."""
        ...

    @property
    def alive(self) -> bool:
        """False once the engine is lost; never true again."""
        ...

    async def stop(self) -> None:
        """Ends the engine and its processes within seconds, live requests with ``EngineLostError``. Idempotent; legal
        before and during ``start``."""
        ...
