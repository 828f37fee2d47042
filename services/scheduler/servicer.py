"""The gRPC door of a replica: unpack, call the session or the front, pack."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator

import grpc
import grpc.aio
import structlog
from forerun.scheduler.v1 import service_pb2, service_pb2_grpc

from services.common.convert import replica_info_to_proto, submission_from_proto
from services.common.errors import RequestEndedError, invalid, unavailable
from services.common.outcome import Outcome
from services.common.types import SamplingOptions, Submission
from services.common.validation import REQUEST_ID_PATTERN
from services.common.version import SESSION_PROTOCOL_VERSION
from services.scheduler.config import SchedulerConfig
from services.scheduler.convert import outbound_messages, welcome
from services.scheduler.event_buffer import EventBuffer
from services.scheduler.front import Front
from services.scheduler.metrics import SchedulerMetrics
from services.scheduler.session import RouterSession
from services.scheduler.status import ReplicaStatus

SERVICE_NAME = service_pb2.DESCRIPTOR.services_by_name["SchedulerService"].full_name

RequestStream = AsyncIterator[service_pb2.SessionRequest]
Context = grpc.aio.ServicerContext[service_pb2.SessionRequest, service_pb2.SessionResponse]

_log = structlog.get_logger(__name__)


class SchedulerServicer(service_pb2_grpc.SchedulerServiceServicer):
    """``SchedulerService`` over one front. Before ``open`` every call is refused with UNAVAILABLE."""

    def __init__(self, config: SchedulerConfig, status: ReplicaStatus, metrics: SchedulerMetrics) -> None:
        self._config = config
        self._status = status
        self._metrics = metrics
        self._front: Front | None = None
        self._sessions: set[RouterSession] = set()
        self._no_sessions = asyncio.Event()
        self._no_sessions.set()
        self._numbers = itertools.count(1)

    @property
    def sessions(self) -> int:
        """Routers connected now."""
        return len(self._sessions)

    def open(self, front: Front) -> None:
        """The engine is ready: sessions may come."""
        self._front = front

    async def close_sessions(self, timeout_s: float) -> None:
        """Ends every session once its router has read what waits, or when the time is up."""
        for session in self._sessions:
            session.buffer.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._no_sessions.wait()

    # The stub knows generators only; a coroutine that writes is the other legal form.
    async def Session(  # type: ignore[override]
        self, request_iterator: RequestStream, context: Context
    ) -> None:
        front = self._ready()
        router_id = await self._hello(request_iterator, context)
        buffer = EventBuffer(self._config.session_event_buffer, self._config.session_buffer_bytes)
        # Before the welcome, so that no change of state falls between the two.
        session = RouterSession(f"{router_id}.{next(self._numbers)}", front, self._status, buffer)
        self._sessions.add(session)
        self._no_sessions.clear()
        _log.info("session opened", router=router_id)
        try:
            await context.write(welcome(front.info()))
            await self._serve(session, request_iterator, context)
        finally:
            session.close()
            self._sessions.discard(session)
            if not self._sessions:
                self._no_sessions.set()
            self._metrics.merged_deltas.inc(buffer.merged)
            _log.info("session closed", router=router_id)

    async def GetReplicaInfo(
        self, request: service_pb2.GetReplicaInfoRequest, context: Context
    ) -> service_pb2.GetReplicaInfoResponse:
        return replica_info_to_proto(self._ready().info())

    async def Drain(self, request: service_pb2.DrainRequest, context: Context) -> service_pb2.DrainResponse:
        front = self._ready()
        self._status.drain("told to drain")
        return service_pb2.DrainResponse(in_flight_requests=front.live_requests)

    def _ready(self) -> Front:
        if self._front is None:
            raise unavailable("the engine is starting")
        return self._front

    async def _hello(self, requests: RequestStream, context: Context) -> str:
        try:
            async with asyncio.timeout(self._config.hello_timeout_s):
                first = await anext(requests, None)
        except TimeoutError:
            raise RequestEndedError(Outcome.DEADLINE, f"no hello within {self._config.hello_timeout_s} s") from None
        if first is None or first.WhichOneof("command") != "hello":
            raise invalid("command", "the first message of a session must be hello")
        version, router_id = first.hello.protocol_version, first.hello.router_id
        if version != SESSION_PROTOCOL_VERSION:
            problem = f"session protocol {version}, this replica speaks {SESSION_PROTOCOL_VERSION}; install one version"
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, problem)
        if REQUEST_ID_PATTERN.fullmatch(router_id) is None:
            raise invalid("hello.router_id", "must be 1 to 128 characters of [A-Za-z0-9_.:-]")
        return router_id

    async def _serve(self, session: RouterSession, requests: RequestStream, context: Context) -> None:
        """Until the router leaves, the replica closes the session, or the router falls too far behind."""
        reading = asyncio.create_task(self._read(session, requests))
        writing = asyncio.create_task(self._write(session, context))
        overflow = asyncio.create_task(session.buffer.overflowed.wait())
        tasks: tuple[asyncio.Task[object], ...] = (reading, writing, overflow)
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if overflow in done:
            self._metrics.overflows.inc()
            raise RequestEndedError(Outcome.REJECTED_OVERLOAD, "the router does not read its events")
        for ended in done:
            ended.result()

    async def _read(self, session: RouterSession, requests: RequestStream) -> None:
        async for request in requests:
            match request.WhichOneof("command"):
                case "submit":
                    self._submit(session, request.submit)
                case "cancel":
                    session.cancel(request.cancel.request_id)
                case _:
                    raise invalid("command", "must be submit or cancel after the first hello")

    def _submit(self, session: RouterSession, submit: service_pb2.Submit) -> None:
        try:
            submission = submission_from_proto(submit)
        except RequestEndedError as error:
            session.refuse(Submission(submit.request_id, tuple(submit.prompt_token_ids), SamplingOptions()), error)
        else:
            session.submit(submission)

    async def _write(self, session: RouterSession, context: Context) -> None:
        limit = self._config.server.max_message_bytes
        while (outbound := await session.buffer.take()) is not None:
            for message in outbound_messages(outbound, limit):
                await context.write(message)
                self._metrics.messages.inc()
            self._metrics.events.inc(len(outbound.events))


def add_to_server(servicer: SchedulerServicer, server: grpc.aio.Server) -> None:
    """Registers the servicer."""
    service_pb2_grpc.add_SchedulerServiceServicer_to_server(servicer, server)
