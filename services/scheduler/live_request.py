"""One request's life on this replica: from the engine's generator to its one ``Finished``."""

import asyncio
import time
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import replace

import structlog

from services.common.errors import RequestEndedError
from services.common.logs import bound_request
from services.common.outcome import Outcome
from services.common.types import Delta, Finished, GenerationEvent, Submission, Usage
from services.scheduler.admission_span import AdmissionSpan, trace_id_in
from services.scheduler.engine import Engine, EngineLostError

RETRY_ELSEWHERE_MS = 1000

_log = structlog.get_logger(__name__)


class LiveRequest:
    """A request that the engine works on.

    Whatever happens (the engine ends it, dies or fails; the deadline passes; ``stop`` or ``abandon`` is called, in
    any order and more than once), ``emit`` sees exactly one ``Finished``, last, and the engine forgets the request.
    """

    def __init__(
        self,
        engine: Engine,
        submission: Submission,
        engine_id: str,
        emit: Callable[[GenerationEvent], None],
        span: AdmissionSpan,
        on_lost: Callable[[str], None],
    ) -> None:
        """``engine_id`` names the request inside the engine. ``emit`` takes every event; ``on_lost`` hears when the
        engine turns out to be dead."""
        self._engine = engine
        self._submission = submission
        self._engine_id = engine_id
        self._emit = emit
        self._span = span
        self._on_lost = on_lost
        self._arrived = time.monotonic()
        self._first_output: float | None = None
        self._output_tokens = 0
        self._stopped_by: Finished | None = None
        self._is_running = False
        self._is_finished = False
        self._task = asyncio.create_task(self._run(), name=f"request-{engine_id}")

    @property
    def is_finished(self) -> bool:
        """``emit`` has seen the ``Finished``."""
        return self._is_finished

    def stop(self, outcome: Outcome, message: str, retry_after_ms: int | None = None) -> None:
        """Ends the request from outside. What ended it first counts."""
        if self._is_finished or self._stopped_by is not None:
            return
        self._stopped_by = self._ended(outcome, message, retry_after_ms)
        self._task.cancel()
        if not self._is_running:
            # A task cancelled before its first step never runs, so nobody else would say so.
            self._finish(self._stopped_by)

    def abandon(self, message: str) -> None:
        """Ends the request because the replica goes: safe to retry elsewhere unless something was emitted."""
        if self._first_output is None:
            self.stop(Outcome.REJECTED_UNAVAILABLE, message, RETRY_ELSEWHERE_MS)
        else:
            self.stop(Outcome.REPLICA_LOST, message)

    async def wait(self) -> None:
        """Until the request has ended and the engine has let go of it."""
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        self._is_running = True
        with bound_request(self._submission.request_id, trace_id_in(self._submission.traceparent)):
            self._finish(await self._outcome())

    async def _outcome(self) -> Finished:
        try:
            async with asyncio.timeout(self._submission.timeout_s):
                return await self._relay()
        except asyncio.CancelledError:
            return self._stopped_by or self._ended(Outcome.CANCELLED, "the replica's front was stopped")
        except TimeoutError:
            return self._stopped_by or self._ended(Outcome.DEADLINE, f"not done after {self._submission.timeout_s} s")
        except RequestEndedError as error:
            return self._stopped_by or self._refused(error)
        except EngineLostError as error:
            self._on_lost(str(error))
            return self._stopped_by or self._lost(f"the engine was lost: {error}")
        except Exception:  # noqa: BLE001  (a task's end: whatever it was, the request must have its one end)
            _log.exception("request failed")
            return self._stopped_by or self._ended(Outcome.INTERNAL, "internal error; see the scheduler's log")

    async def _relay(self) -> Finished:
        submission = replace(self._submission, request_id=self._engine_id)
        async with aclosing(self._engine.generate(submission)) as events:
            async for event in events:
                if isinstance(event, Finished):
                    return event
                if self._first_output is None:
                    self._first_output = time.monotonic()
                    self._span.note_first_output()
                if isinstance(event, Delta):
                    self._output_tokens += len(event.token_ids)
                self._emit(event)
        return self._ended(Outcome.INTERNAL, "the engine ended the request without a word")

    def _finish(self, finished: Finished) -> None:
        if self._is_finished:
            return
        self._is_finished = True
        self._span.end(finished)
        self._emit(finished)

    def _lost(self, message: str) -> Finished:
        if self._first_output is None:
            return self._ended(Outcome.REJECTED_UNAVAILABLE, message, RETRY_ELSEWHERE_MS)
        return self._ended(Outcome.REPLICA_LOST, message)

    def _refused(self, error: RequestEndedError) -> Finished:
        return Finished(
            error.outcome,
            usage=self._usage(),
            message=error.message,
            retry_after_ms=error.retry_after_ms,
            invalid_field=error.field,
        )

    def _ended(self, outcome: Outcome, message: str, retry_after_ms: int | None = None) -> Finished:
        return Finished(outcome, usage=self._usage(), message=message, retry_after_ms=retry_after_ms)

    def _usage(self) -> Usage:
        first = self._first_output
        return Usage(
            prompt_tokens=len(self._submission.prompt_token_ids),
            output_tokens=self._output_tokens,
            first_token_seconds=None if first is None else first - self._arrived,
            total_seconds=time.monotonic() - self._arrived,
        )
