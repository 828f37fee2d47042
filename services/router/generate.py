"""The one domain call that both edges are thin over.

1. The router's own bound. 2. Model, sampling and prompt validated, text tokenized. 3. A replica chosen, KV blocks
reserved, the request submitted (``placement.py``). 4. Events streamed. 5. Exactly one outcome: ``Finished`` with
STOP or LENGTH, else ``RequestEndedError``.

A request whose replica is lost, full or draining before it emitted anything goes to another replica, once; the client
does not notice. After the first event it ends with what ended it.
"""

import asyncio
import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

import structlog
from opentelemetry import trace

from services.common.errors import RequestEndedError, unavailable
from services.common.outcome import Outcome
from services.common.types import Finished, GenerationEvent, Submission
from services.common.validation import validate_prompt, validate_request_id, validate_sampling, validate_tenant
from services.router.admission import Admission
from services.router.metrics import RouterMetrics
from services.router.placement import Placed, Placement
from services.router.rendering import PromptRenderer
from services.router.replica_pool import ReplicaPool
from services.router.replica_session import SubmittedRequest
from services.router.request import RETRIED, RouterEvent, RouterRequest, Started, TextPrompt, TokensPrompt
from services.router.request_record import RequestRecord
from services.router.reservations import Reservations

MAX_ATTEMPTS = 2

DEADLINE_SLACK_S = 0.02
"""Clocks of gRPC and of the event loop tick apart."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Deadlines:
    """What the configuration says about deadlines, in seconds."""

    default_s: float | None = None
    longest_s: float | None = None

    def timeout(self, asked_s: float | None) -> float | None:
        """What a request gets that asked for ``asked_s``."""
        limits = [
            limit for limit in (self.default_s if asked_s is None else asked_s, self.longest_s) if limit is not None
        ]
        return min(limits, default=None)


@dataclass(frozen=True, slots=True)
class _Job:
    """A valid, tokenized request."""

    submission: Submission
    model: str
    deadline: float | None
    """On the event loop's clock."""


class GenerateCall:
    """Belongs to one event loop; any number of requests at once."""

    def __init__(
        self,
        pool: ReplicaPool,
        placement: Placement,
        reservations: Reservations,
        admission: Admission,
        renderer: Callable[[], PromptRenderer | None],
        deadlines: Deadlines,
        metrics: RouterMetrics,
        tracer: trace.Tracer,
    ) -> None:
        """``renderer`` returns None while it is loading."""
        self._pool = pool
        self._placement = placement
        self._reservations = reservations
        self._admission = admission
        self._renderer = renderer
        self._deadlines = deadlines
        self._metrics = metrics
        self._tracer = tracer

    async def generate(self, request: RouterRequest) -> AsyncGenerator[list[RouterEvent], None]:
        """Batches of events: ``Started`` first, ``Finished`` last. Closing it early cancels the request everywhere.

        Raises ``RequestEndedError`` when the request ends otherwise than by the engine.
        """
        timeout_s = self._deadlines.timeout(request.timeout_s)
        deadline = None if timeout_s is None else asyncio.get_running_loop().time() + timeout_s
        request_id = request.request_id or f"req-{uuid.uuid4().hex}"
        record = RequestRecord(request, request_id, self._tracer, self._metrics)
        try:
            validate_request_id(request_id)
            validate_tenant(request.tenant)
            with self._admission.slot(request_id):
                job = await self._prepare(request, record, deadline)
                async with aclosing(self._attempts(job, record)) as batches:
                    async for batch in batches:
                        record.saw(batch)
                        yield batch
        except RequestEndedError as error:
            record.end(error.outcome, error.message)
            raise
        except (asyncio.CancelledError, GeneratorExit):
            record.end(_outcome_of_cancel(deadline))
            raise
        except Exception as error:
            record.end(Outcome.INTERNAL, "internal error")
            _log.exception("request failed", request_id=request_id, trace_id=record.trace_id)
            raise RequestEndedError(
                Outcome.INTERNAL, f"internal error; request id {request_id}; see the router's log"
            ) from error

    async def _prepare(self, request: RouterRequest, record: RequestRecord, deadline: float | None) -> _Job:
        """Validates and tokenizes. Raises ``RequestEndedError``."""
        model, info = self._pool.resolve_model(request.model)
        validate_sampling(request.sampling, info.vocab_size, info.max_model_len)
        try:
            async with asyncio.timeout_at(deadline):
                token_ids = await self._token_ids(request)
        except TimeoutError:
            raise _deadline_passed() from None
        validate_prompt(token_ids, request.sampling, info.vocab_size, info.max_model_len)
        traceparent, tracestate = record.context
        submission = Submission(
            request_id=record.request_id,
            prompt_token_ids=token_ids,
            sampling=request.sampling,
            priority=request.priority,
            tenant=request.tenant,
            traceparent=traceparent,
            tracestate=tracestate,
            final_only=request.final_only,
            reasoning_ended=request.reasoning_ended,
        )
        return _Job(submission, model, deadline)

    async def _token_ids(self, request: RouterRequest) -> tuple[int, ...]:
        if isinstance(request.prompt, TokensPrompt):
            return request.prompt.token_ids
        renderer = self._renderer()
        if renderer is None:
            raise unavailable("the tokenizer is still loading; send token ids, or try again later")
        if isinstance(request.prompt, TextPrompt):
            return await renderer.tokenize(request.prompt)
        return await renderer.render_chat(request.prompt)

    async def _attempts(self, job: _Job, record: RequestRecord) -> AsyncGenerator[list[RouterEvent], None]:
        """The answer, from the second replica where the first fails before it began."""
        tried: list[str] = []
        while True:
            started = False
            try:
                async with aclosing(self._attempt(job, tried, record)) as batches:
                    async for batch in batches:
                        started = True
                        yield batch
                return
            except RequestEndedError as error:
                may_retry = not started and error.outcome in RETRIED and 0 < len(tried) < MAX_ATTEMPTS
                if not may_retry or not self._placement.can_take(job.model, tried):
                    raise _restated(error, started) from None
                _log.info("retrying elsewhere", request_id=record.request_id, reason=error.message)
                record.retried(error.outcome)

    async def _attempt(
        self, job: _Job, tried: list[str], record: RequestRecord
    ) -> AsyncGenerator[list[RouterEvent], None]:
        """One replica's answer; the replica joins ``tried``. Raises what the replica ended the request with."""
        placed = await self._submit(job, tried, record)
        submitted = placed.submitted
        tried.append(submitted.replica_id)
        timer = _start_timer(submitted, job.deadline)
        prompt_tokens = len(job.submission.prompt_token_ids)
        head: list[RouterEvent] = [
            Started(record.request_id, submitted.replica_id, record.trace_id, prompt_tokens, placed.expert)
        ]
        try:
            while True:
                events = await submitted.events()
                failure = _failure(events[-1])
                output = events if failure is None else events[:-1]
                if output:
                    yield [*head, *output]
                    head = []
                if failure is not None:
                    raise failure
                if isinstance(events[-1], Finished):
                    return
        finally:
            if timer is not None:
                timer.cancel()
            submitted.close()
            self._reservations.release(placed.reservation_id)

    async def _submit(self, job: _Job, tried: Sequence[str], record: RequestRecord) -> Placed:
        remaining_s = None if job.deadline is None else job.deadline - asyncio.get_running_loop().time()
        if remaining_s is not None and remaining_s <= 0:
            raise _deadline_passed()
        submission = replace(job.submission, timeout_s=remaining_s)
        try:
            async with asyncio.timeout_at(job.deadline):
                return await self._placement.place(submission, job.model, tried, record.span)
        except TimeoutError:
            raise _deadline_passed() from None


def _start_timer(submitted: SubmittedRequest, deadline: float | None) -> asyncio.TimerHandle | None:
    """One timer a request is cheaper than a timeout around every wait."""
    if deadline is None:
        return None
    return asyncio.get_running_loop().call_at(deadline, submitted.fail, _deadline_passed())


def _failure(event: GenerationEvent) -> RequestEndedError | None:
    """The error that a replica's last event stands for."""
    if not isinstance(event, Finished) or event.outcome.is_success:
        return None
    return RequestEndedError(
        event.outcome,
        event.message or f"the replica ended the request: {event.outcome.value}",
        field=event.invalid_field,
        retry_after_ms=event.retry_after_ms,
    )


def _restated(error: RequestEndedError, started: bool) -> RequestEndedError:
    """Without output a lost replica is no loss to the client: it may simply try again."""
    if error.outcome is Outcome.REPLICA_LOST and not started:
        return unavailable(f"{error.message}; nothing was emitted, so a retry is safe")
    return error


def _deadline_passed() -> RequestEndedError:
    return RequestEndedError(Outcome.DEADLINE, "the request's deadline passed")


def _outcome_of_cancel(deadline: float | None) -> Outcome:
    """gRPC cancels a call whose deadline passes just as one whose client went away."""
    passed = deadline is not None and asyncio.get_running_loop().time() >= deadline - DEADLINE_SLACK_S
    return Outcome.DEADLINE if passed else Outcome.CANCELLED
