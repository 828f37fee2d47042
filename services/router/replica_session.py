"""This router's one stream to one replica: submits and cancels out, batches of events in.

The session reconnects for ever, with bounded back-off. When the stream breaks, every request in flight on it ends
with REPLICA_LOST at once; whether that is retried elsewhere is the domain call's decision.
"""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

import grpc
import grpc.aio
import structlog
from forerun.scheduler.v1 import service_pb2 as pb
from forerun.scheduler.v1 import service_pb2_grpc as pb_grpc

from services.common import convert
from services.common.errors import RequestEndedError, invalid, unavailable
from services.common.outcome import Outcome
from services.common.types import Finished, GenerationEvent, ReplicaInfo, ReplicaState, Submission
from services.common.version import SESSION_PROTOCOL_VERSION
from services.router.backoff import Backoff
from services.router.event_queue import EventQueue

WELCOME_TIMEOUT_S = 10.0
"""Connecting and the replica's answer to ``hello``, together."""

RECONNECT_FIRST_S = 0.1
RECONNECT_LONGEST_S = 2.0

STOPPING = "the router is stopping"

_SessionCall: TypeAlias = "grpc.aio.StreamStreamCall[pb.SessionRequest, pb.SessionResponse]"

_log = structlog.get_logger(__name__)


class SessionRefusedError(Exception):
    """The peer is not the replica that it should be, or does not speak this contract."""


class SubmittedRequest:
    """One request on one replica. ``close`` must be called; it cancels what has not ended."""

    def __init__(self, session: "ReplicaSession", request_id: str, blocks: int) -> None:
        self._session = session
        self.request_id = request_id
        self.blocks = blocks
        """KV blocks that the request was estimated at."""
        self.queue = EventQueue()

    @property
    def replica_id(self) -> str:
        """The replica that serves the request."""
        return self._session.replica_id

    async def events(self) -> list[GenerationEvent]:
        """What arrived since the last call, at least one event. Raises ``RequestEndedError`` when the replica is
        lost, or what ``fail`` was given."""
        return await self.queue.get()

    def fail(self, error: RequestEndedError) -> None:
        """Ends the request from this side; ``events`` raises ``error`` and ``close`` cancels it at the replica."""
        self.queue.fail(error)

    def close(self) -> None:
        """Gives up the request; idempotent, never waits."""
        self._session.close_request(self)


class ReplicaSession:
    """See the module. Belongs to one event loop; ``run`` is its only task."""

    def __init__(
        self,
        replica_id: str,
        address: str,
        router_id: str,
        channel: grpc.aio.Channel,
        on_change: Callable[[], None],
    ) -> None:
        """``channel`` leads to ``address`` and is closed when ``run`` ends."""
        self.replica_id = replica_id
        self.address = address
        self.info: ReplicaInfo | None = None
        """What the replica said of itself at the newest welcome; kept when it is lost."""
        self._router_id = router_id
        self._channel = channel
        self._on_change = on_change
        self._state = ReplicaState.LOST
        self._requests: dict[str, SubmittedRequest] = {}
        self._cancelled: set[str] = set()
        self._own_blocks = 0
        # Bounded by the requests in flight: each puts at most one submit and one cancel in.
        self._outbox: asyncio.Queue[pb.SessionRequest] = asyncio.Queue()

    @property
    def state(self) -> ReplicaState:
        """LOST while there is no session."""
        return self._state

    @property
    def in_flight(self) -> int:
        """Requests that this router has on the replica."""
        return len(self._requests)

    @property
    def own_blocks(self) -> int:
        """KV blocks that those requests were estimated at."""
        return self._own_blocks

    @property
    def has_slot(self) -> bool:
        """Serving, and this router alone does not fill the replica's running and waiting places."""
        if self.info is None or self._state is not ReplicaState.SERVING:
            return False
        places = self.info.max_running_requests + self.info.max_waiting_requests
        return places == 0 or self.in_flight < places

    def submit(self, submission: Submission, blocks: int) -> SubmittedRequest:
        """Sends a request. Raises ``RequestEndedError`` when the replica does not serve now."""
        if self._state is not ReplicaState.SERVING:
            raise unavailable(f"replica {self.replica_id} is {self._state.value}")
        request_id = submission.request_id
        if request_id in self._requests or request_id in self._cancelled:
            raise invalid("request_id", f"{request_id} is still in flight; ids must be unique among live requests")
        message = pb.SessionRequest(submit=convert.submission_to_proto(submission))
        request = SubmittedRequest(self, request_id, blocks)
        self._requests[request_id] = request
        self._own_blocks += blocks
        self._outbox.put_nowait(message)
        return request

    def close_request(self, request: SubmittedRequest) -> None:
        """See ``SubmittedRequest.close``."""
        if self._requests.get(request.request_id) is not request:
            return
        self._forget(request)
        self._cancelled.add(request.request_id)
        self._outbox.put_nowait(pb.SessionRequest(cancel=pb.Cancel(request_id=request.request_id)))

    async def run(self) -> None:
        """Holds a session open for ever; ends only when cancelled."""
        backoff = Backoff(RECONNECT_FIRST_S, RECONNECT_LONGEST_S)
        try:
            while True:
                reason = await self._hold_session(backoff)
                self._lose(reason)
                await asyncio.sleep(backoff.next())
        finally:
            self._lose(STOPPING)
            await self._channel.close()

    async def _hold_session(self, backoff: Backoff) -> str:
        """One session from hello to its end; returns why it ended."""
        self._outbox = asyncio.Queue()
        call = pb_grpc.SchedulerServiceStub(self._channel).Session(wait_for_ready=True)
        writer = asyncio.create_task(self._write(call, self._outbox))
        try:
            async with asyncio.timeout(WELCOME_TIMEOUT_S):
                self._on_welcome(await call.read())
            backoff.reset()
            while isinstance(response := await call.read(), pb.SessionResponse):
                self._on_response(response)
            return f"the replica ended the session ({(await call.code()).name}: {await call.details()})"
        except grpc.aio.AioRpcError as error:
            return f"{error.code().name}: {error.details()}"
        except TimeoutError:
            return f"no answer within {WELCOME_TIMEOUT_S:g} s"
        except SessionRefusedError as error:
            _log.error("session refused", replica_id=self.replica_id, address=self.address, reason=str(error))
            return str(error)
        except Exception as error:  # noqa: BLE001  (whatever it was, the requests must end and the replica be dialled again)
            _log.exception("session failed", replica_id=self.replica_id, address=self.address)
            return f"internal error ({type(error).__name__})"
        finally:
            writer.cancel()
            call.cancel()

    async def _write(self, call: _SessionCall, outbox: asyncio.Queue[pb.SessionRequest]) -> None:
        # Written one by one: gRPC's own reading of a request iterator leaves tasks behind when the stream breaks.
        hello = pb.Hello(router_id=self._router_id, protocol_version=SESSION_PROTOCOL_VERSION)
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await call.write(pb.SessionRequest(hello=hello))
            while True:
                await call.write(await outbox.get())

    def _on_welcome(self, response: object) -> None:
        if not isinstance(response, pb.SessionResponse) or not response.HasField("welcome"):
            raise SessionRefusedError("the first response is no welcome")
        info = convert.replica_info_from_proto(response.welcome.replica)
        if info.replica_id != self.replica_id:
            raise SessionRefusedError(
                f"{self.address} is replica {info.replica_id}, not {self.replica_id}; correct the router's replicas"
            )
        self.info = info
        _log.info("replica connected", replica_id=self.replica_id, address=self.address, generation=info.generation)
        self._set_state(info.state)

    def _on_response(self, response: pb.SessionResponse) -> None:
        kind = response.WhichOneof("message")
        if kind == "events":
            self._on_events(response.events)
        elif kind == "state":
            state = convert.replica_state_from_proto(response.state.state)
            _log.info("replica state", replica_id=self.replica_id, state=state.value, reason=response.state.reason)
            self._set_state(state)

    def _on_events(self, batch: pb.EventBatch) -> None:
        for message in batch.events:
            request = self._requests.get(message.request_id)
            if request is None:
                if message.HasField("finished"):
                    self._cancelled.discard(message.request_id)
                continue
            event = convert.event_from_proto(message)
            if event is None:
                continue
            request.queue.put(event)
            if isinstance(event, Finished):
                self._forget(request)

    def _set_state(self, state: ReplicaState) -> None:
        if state is self._state:
            return
        self._state = state
        if self.info is not None:
            self.info = replace(self.info, state=state)
        self._on_change()

    def _lose(self, reason: str) -> None:
        """No session any more: what is in flight ends, what was cancelled is over."""
        if self._state is not ReplicaState.LOST and reason != STOPPING:
            _log.warning("replica lost", replica_id=self.replica_id, reason=reason, in_flight=self.in_flight)
        requests, self._requests = self._requests, {}
        self._cancelled.clear()
        self._own_blocks = 0
        for request in requests.values():
            request.fail(RequestEndedError(Outcome.REPLICA_LOST, f"replica {self.replica_id} was lost ({reason})"))
        self._set_state(ReplicaState.LOST)

    def _forget(self, request: SubmittedRequest) -> None:
        del self._requests[request.request_id]
        self._own_blocks -= request.blocks
