"""What a replica does with requests, whichever session they come from: check, bound, run, end."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

import structlog
from opentelemetry.trace import Tracer

from services.common.errors import RequestEndedError, invalid
from services.common.types import Finished, GenerationEvent, ReplicaInfo, Submission, Usage
from services.common.validation import validate_prompt, validate_sampling, validate_tenant
from services.scheduler.admission import AdmissionQueue
from services.scheduler.admission_span import AdmissionSpan
from services.scheduler.engine import Engine
from services.scheduler.live_request import LiveRequest
from services.scheduler.metrics import SchedulerMetrics
from services.scheduler.status import ReplicaStatus

CANDIDATE_BYTES = 64
"""More than a logprob candidate takes on the wire."""

Emit = Callable[[GenerationEvent], None]

_log = structlog.get_logger(__name__)


class Front:
    """The one place where requests enter the engine. Built once the engine is ready."""

    def __init__(
        self,
        engine: Engine,
        status: ReplicaStatus,
        queue: AdmissionQueue,
        metrics: SchedulerMetrics,
        tracer: Tracer,
        max_message_bytes: int,
    ) -> None:
        self._engine = engine
        self._status = status
        self._queue = queue
        self._metrics = metrics
        self._tracer = tracer
        self._max_message_bytes = max_message_bytes
        self._live: set[LiveRequest] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def live_requests(self) -> int:
        """Requests taken on and not ended yet."""
        return len(self._live)

    def info(self) -> ReplicaInfo:
        """What the replica is and how it is now."""
        return replace(self._engine.info(), state=self._status.state)

    def submit(self, submission: Submission, emit: Emit, *, engine_id: str) -> LiveRequest | None:
        """Takes on a request, or refuses it at once; either way ``emit`` sees exactly one ``Finished``.

        ``engine_id`` names the request inside the engine: unique among all sessions. None: it was refused.
        """
        try:
            self._check(submission)
            self._queue.enter(submission.sampling.n)
        except RequestEndedError as error:
            self.refuse(submission, emit, error)
            return None
        return self._start(submission, emit, engine_id)

    def refuse(self, submission: Submission, emit: Emit, error: RequestEndedError) -> None:
        """Ends a request that is not taken on."""
        finished = Finished(
            error.outcome,
            usage=Usage(prompt_tokens=len(submission.prompt_token_ids)),
            message=error.message,
            retry_after_ms=error.retry_after_ms,
            invalid_field=error.field,
        )
        self._metrics.note_end(finished)
        _log.debug("request refused", request_id=submission.request_id, outcome=finished.outcome.value)
        emit(finished)

    async def wait_idle(self) -> None:
        """Until no request is live."""
        await self._idle.wait()

    async def abandon_all(self, message: str, timeout_s: float) -> None:
        """Ends all live requests because the replica goes, and waits until the engine has let go of them."""
        live = list(self._live)
        for request in live:
            request.abandon(message)
        if live:
            waits = [asyncio.create_task(request.wait()) for request in live]
            _, late = await asyncio.wait(waits, timeout=timeout_s)
            for wait in late:
                wait.cancel()
            if late:
                _log.warning("the engine did not let go of all requests", requests=len(late))

    def _check(self, submission: Submission) -> None:
        self._status.check_serving()
        info = self._engine.info()
        validate_tenant(submission.tenant)
        validate_sampling(submission.sampling, info.vocab_size, info.max_model_len)
        validate_prompt(submission.prompt_token_ids, submission.sampling, info.vocab_size, info.max_model_len)
        self._check_prompt_logprobs(submission)

    def _check_prompt_logprobs(self, submission: Submission) -> None:
        """All of them travel in one message, which has a limit."""
        asked = submission.sampling.prompt_logprobs
        tokens = len(submission.prompt_token_ids)
        if asked is not None and tokens * (asked + 1) * CANDIDATE_BYTES > self._max_message_bytes:
            raise invalid(
                "sampling.prompt_logprobs",
                f"{asked} for each of {tokens} prompt tokens do not fit into a message of {self._max_message_bytes} "
                "bytes; ask for fewer",
            )

    def _start(self, submission: Submission, emit: Emit, engine_id: str) -> LiveRequest:
        info = self._engine.info()
        span = AdmissionSpan(self._tracer, submission, info.replica_id, info.generation)

        def on_event(event: GenerationEvent) -> None:
            emit(event)
            if isinstance(event, Finished):
                self._end(request, submission, event)

        request = LiveRequest(self._engine, submission, engine_id, on_event, span, self._status.lose)
        self._live.add(request)
        self._idle.clear()
        return request

    def _end(self, request: LiveRequest, submission: Submission, finished: Finished) -> None:
        self._live.discard(request)
        self._queue.leave(submission.sampling.n)
        if not self._live:
            self._idle.set()
        self._metrics.note_end(finished)
        _log.info(
            "request ended",
            request_id=submission.request_id,
            outcome=finished.outcome.value,
            prompt_tokens=finished.usage.prompt_tokens,
            output_tokens=finished.usage.output_tokens,
            total_seconds=finished.usage.total_seconds,
        )
