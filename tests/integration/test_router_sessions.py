"""One session against a replica that behaves as a test tells it: rightly, wrongly, late, or not at all."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio
import pytest
from forerun.inference.v1 import generation_pb2, outcome_pb2
from forerun.inference.v1 import service_pb2 as inference_pb2
from forerun.scheduler.v1 import service_pb2 as pb
from forerun.scheduler.v1 import service_pb2_grpc as pb_grpc

from services.common.convert import replica_info_to_proto
from services.common.errors import RequestEndedError
from services.common.outcome import Outcome
from services.common.types import Delta, Finished, ReplicaState, SamplingOptions, Submission
from services.router import replica_session
from services.router.replica_session import ReplicaSession
from tests.support.router_fakes import replica_info
from tests.support.waiting import eventually

Script = Callable[[Any, Any], Awaitable[None]]

WELCOME = pb.SessionResponse(welcome=pb.Welcome(replica=replica_info_to_proto(replica_info("r0"))))


class Replica(pb_grpc.SchedulerServiceServicer):
    """``Session`` runs a script with the request stream and the call; what it read is in ``seen``."""

    def __init__(self) -> None:
        self.script: Script = self.obey
        self.sessions = 0
        self.seen: list[pb.SessionRequest] = []
        self.context: Any = None
        self._cut = asyncio.Event()

    async def Session(self, request_iterator: Any, context: Any) -> None:
        self.sessions += 1
        self.context = context
        running = asyncio.ensure_future(self.script(request_iterator, context))
        cut = asyncio.ensure_future(self._cut.wait())
        await asyncio.wait([running, cut], return_when=asyncio.FIRST_COMPLETED)
        self._cut.clear()
        cut.cancel()
        if not running.done():
            running.cancel()
            await context.abort(grpc.StatusCode.INTERNAL, "cut")
        running.result()

    def cut(self) -> None:
        """Breaks the session that is open now."""
        self._cut.set()

    async def obey(self, requests: Any, context: Any) -> None:
        """Welcomes, then reads; the test writes."""
        await context.write(WELCOME)
        async for request in requests:
            self.seen.append(request)

    async def send(self, *events: pb.RequestEvent) -> None:
        await self.context.write(pb.SessionResponse(events=pb.EventBatch(events=events)))

    def commands(self, kind: str) -> list[Any]:
        return [getattr(request, kind) for request in self.seen if request.WhichOneof("command") == kind]


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[Replica, ReplicaSession]]:
    server, replica = grpc.aio.server(), Replica()
    pb_grpc.add_SchedulerServiceServicer_to_server(replica, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
    session = ReplicaSession("r0", f"127.0.0.1:{port}", "router", channel, lambda: None)
    task = asyncio.create_task(session.run())
    try:
        yield replica, session
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await server.stop(None)


async def serving(session: ReplicaSession) -> None:
    await eventually(lambda: session.state is ReplicaState.SERVING)


def submission(request_id: str) -> Submission:
    return Submission(request_id, (1, 2, 3), SamplingOptions(max_tokens=4))


def delta(request_id: str, text: str) -> pb.RequestEvent:
    return pb.RequestEvent(request_id=request_id, delta=generation_pb2.Delta(text=text, token_ids=[1]))


def finished(request_id: str, outcome: int = outcome_pb2.OUTCOME_STOP) -> pb.RequestEvent:
    return pb.RequestEvent(request_id=request_id, finished=generation_pb2.Finished(outcome=outcome))  # type: ignore[arg-type]


async def test_one_batch_feeds_many_requests() -> None:
    async with connected() as (replica, session):
        await serving(session)
        requests = [session.submit(submission(name), 2) for name in ("a", "b")]
        assert (session.in_flight, session.own_blocks) == (2, 4)
        await eventually(lambda: len(replica.commands("submit")) == 2)
        await replica.send(delta("a", "1"), delta("b", "2"), delta("a", "3"), finished("a"))
        first = await asyncio.wait_for(requests[0].events(), 5)
        assert [event.text for event in first if isinstance(event, Delta)] == ["1", "3"]
        assert isinstance(first[-1], Finished)
        assert len(await asyncio.wait_for(requests[1].events(), 5)) == 1
        assert (session.in_flight, session.own_blocks) == (1, 2)
        requests[0].close()
        assert replica.commands("cancel") == []


async def test_closing_cancels_once_and_late_events_are_nobodys() -> None:
    async with connected() as (replica, session):
        await serving(session)
        request = session.submit(submission("a"), 2)
        request.close()
        request.close()
        assert (session.in_flight, session.own_blocks) == (0, 0)
        await eventually(lambda: len(replica.commands("cancel")) == 1)
        with pytest.raises(RequestEndedError, match="in flight"):
            session.submit(submission("a"), 2)
        await replica.send(delta("a", "late"), delta("never", "heard of"), finished("a", outcome_pb2.OUTCOME_CANCELLED))
        await eventually(lambda: not session._cancelled)
        again = session.submit(submission("a"), 2)
        await eventually(lambda: len(replica.commands("submit")) == 2)
        await replica.send(delta("a", "new"))
        (event,) = await asyncio.wait_for(again.events(), 5)
        assert isinstance(event, Delta)
        assert event.text == "new"


@pytest.mark.parametrize("outcome", [77, outcome_pb2.OUTCOME_UNSPECIFIED], ids=["of a newer replica", "unspecified"])
async def test_outcomes_this_router_does_not_know_are_internal(outcome: int) -> None:
    async with connected() as (replica, session):
        await serving(session)
        request = session.submit(submission("a"), 1)
        await eventually(lambda: replica.commands("submit"))
        await replica.send(pb.RequestEvent(request_id="a"), finished("a", outcome))
        (event,) = await asyncio.wait_for(request.events(), 5)
        assert isinstance(event, Finished)
        assert event.outcome is Outcome.INTERNAL


async def test_a_broken_stream_ends_what_is_in_flight_and_is_dialled_again() -> None:
    async with connected() as (replica, session):
        await serving(session)
        request = session.submit(submission("a"), 1)
        await eventually(lambda: replica.commands("submit"))

        async def refuse(requests: Any, context: Any) -> None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "starting")

        replica.script = refuse
        await replica.send(delta("a", "1"))
        await asyncio.wait_for(request.events(), 5)
        replica.cut()
        with pytest.raises(RequestEndedError) as caught:
            await asyncio.wait_for(request.events(), 5)
        assert caught.value.outcome is Outcome.REPLICA_LOST
        assert session.state is ReplicaState.LOST
        assert session.info is not None
        request.close()
        with pytest.raises(RequestEndedError) as refused:
            session.submit(submission("b"), 1)
        assert refused.value.outcome is Outcome.REJECTED_UNAVAILABLE
        await eventually(lambda: replica.sessions >= 3)
        replica.script = replica.obey
        await serving(session)
        assert session.in_flight == 0


async def test_a_drained_replica_says_so_before_it_leaves() -> None:
    async with connected() as (replica, session):
        await serving(session)
        request = session.submit(submission("a"), 1)
        await eventually(lambda: replica.commands("submit"))
        state = pb.StateChange(state=inference_pb2.REPLICA_STATE_DRAINING, reason="told to")
        await replica.context.write(pb.SessionResponse(state=state))
        await eventually(lambda: session.state is ReplicaState.DRAINING)
        assert not session.has_slot
        await replica.send(finished("a"))
        assert len(await asyncio.wait_for(request.events(), 5)) == 1


async def test_a_replica_that_never_welcomes_is_dialled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_session, "WELCOME_TIMEOUT_S", 0.2)
    async with connected() as (replica, session):

        async def silent(requests: Any, context: Any) -> None:
            await asyncio.sleep(60)

        await serving(session)
        replica.script = silent
        replica.cut()
        await eventually(lambda: replica.sessions >= 4)
        assert session.state is ReplicaState.LOST
        replica.script = replica.obey
        await serving(session)


@pytest.mark.parametrize(
    "first",
    [
        pb.SessionResponse(events=pb.EventBatch()),
        pb.SessionResponse(),
        pb.SessionResponse(welcome=pb.Welcome(replica=replica_info_to_proto(replica_info("other")))),
    ],
    ids=["events first", "empty", "another replica"],
)
async def test_a_replica_with_a_wrong_greeting_is_not_used(first: pb.SessionResponse) -> None:
    async with connected() as (replica, session):

        async def greet(requests: Any, context: Any) -> None:
            await context.write(first)
            await asyncio.sleep(60)

        await serving(session)
        replica.script = greet
        replica.cut()
        await eventually(lambda: replica.sessions >= 3)
        assert session.state is ReplicaState.LOST


async def test_places_are_counted() -> None:
    async with connected() as (_, session):
        await serving(session)
        requests = [session.submit(submission(f"r{number}"), 1) for number in range(7)]
        assert session.has_slot
        last = session.submit(submission("last"), 1)
        assert not session.has_slot
        last.close()
        assert session.has_slot
        assert len(requests) == 7
