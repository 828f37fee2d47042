"""A bare router: one ``Session`` stream, spoken in protobuf, that keeps everything it hears."""

import asyncio
from collections import defaultdict
from types import TracebackType

import grpc
import grpc.aio
from forerun.inference.v1 import generation_pb2, sampling_pb2
from forerun.scheduler.v1 import service_pb2, service_pb2_grpc

from services.common.outcome import Outcome

_SMALL_WINDOW = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 65_536)]


class SessionClient:
    """``async with SessionClient(address) as session``. Reads in the background unless ``reads=False``.

    One that does not read keeps gRPC's receive window small and fixed: how much the wire holds for it must not depend
    on the machine.
    """

    def __init__(self, address: str, router_id: str = "test-router", *, reads: bool = True) -> None:
        self._address = address
        self._router_id = router_id
        self._reads = reads
        self.welcome: service_pb2.Welcome | None = None
        self.events: dict[str, list[service_pb2.RequestEvent]] = defaultdict(list)
        self.batch_sizes: list[int] = []
        self.states: list[int] = []
        self._begun: dict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._finished: dict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._reader: asyncio.Task[None] | None = None
        self.ended = asyncio.Event()
        self.end_code: grpc.StatusCode = grpc.StatusCode.OK
        self.end_details = ""

    async def __aenter__(self) -> "SessionClient":
        options = None if self._reads else _SMALL_WINDOW
        self._channel = grpc.aio.insecure_channel(self._address, options=options)
        self.stub = service_pb2_grpc.SchedulerServiceStub(self._channel)
        self.call = self.stub.Session()
        await self.call.write(
            service_pb2.SessionRequest(hello=service_pb2.Hello(router_id=self._router_id, protocol_version=1))
        )
        first = await self.call.read()
        assert isinstance(first, service_pb2.SessionResponse)
        self.welcome = first.welcome
        if self._reads:
            self.start_reading()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.call.cancel()
        if self._reader is not None:
            await asyncio.wait([self._reader], timeout=5)
        await self._channel.close()

    def start_reading(self) -> None:
        self._reader = asyncio.create_task(self._read())

    async def submit(
        self,
        request_id: str,
        prompt: list[int] | None = None,
        *,
        timeout_ms: int | None = None,
        final_only: bool = False,
        reservation_id: str = "",
        traceparent: str = "",
        **sampling: object,
    ) -> None:
        await self.call.write(
            service_pb2.SessionRequest(
                submit=service_pb2.Submit(
                    request_id=request_id,
                    prompt_token_ids=[1, 2, 3] if prompt is None else prompt,
                    sampling=sampling_pb2.SamplingParams(**sampling),
                    timeout_ms=timeout_ms,
                    final_only=final_only,
                    reservation_id=reservation_id,
                    traceparent=traceparent,
                )
            )
        )

    async def cancel(self, request_id: str) -> None:
        await self.call.write(service_pb2.SessionRequest(cancel=service_pb2.Cancel(request_id=request_id)))

    async def finished(self, request_id: str, timeout_s: float = 10.0) -> generation_pb2.Finished:
        """Waits for the request's end."""
        await asyncio.wait_for(self._finished[request_id].wait(), timeout_s)
        return self.finishes(request_id)[0]

    async def first_delta(self, request_id: str, timeout_s: float = 10.0) -> None:
        """Waits until the request has emitted something."""
        await asyncio.wait_for(self._begun[request_id].wait(), timeout_s)

    def finishes(self, request_id: str) -> list[generation_pb2.Finished]:
        return [event.finished for event in self.events[request_id] if event.HasField("finished")]

    def token_ids(self, request_id: str, index: int = 0) -> list[int]:
        return [id_ for delta in self._deltas(request_id, index) for id_ in delta.token_ids]

    def text(self, request_id: str, index: int = 0) -> str:
        return "".join(delta.text for delta in self._deltas(request_id, index))

    def _deltas(self, request_id: str, index: int) -> list[generation_pb2.Delta]:
        deltas = [event.delta for event in self.events[request_id] if event.HasField("delta")]
        return [delta for delta in deltas if delta.index == index]

    async def _read(self) -> None:
        try:
            while isinstance(message := await self.call.read(), service_pb2.SessionResponse):
                self._take(message)
            if (code := await self.call.code()) is not grpc.StatusCode.OK:
                self.end_code, self.end_details = code, await self.call.details()
        except grpc.aio.AioRpcError as error:
            self.end_code, self.end_details = error.code(), error.details() or ""
        except asyncio.CancelledError:
            pass
        finally:
            self.ended.set()

    def _take(self, message: service_pb2.SessionResponse) -> None:
        if message.HasField("state"):
            self.states.append(message.state.state)
        if message.HasField("events"):
            self.batch_sizes.append(len(message.events.events))
            for event in message.events.events:
                self.events[event.request_id].append(event)
                if event.HasField("delta"):
                    self._begun[event.request_id].set()
                if event.HasField("finished"):
                    self._finished[event.request_id].set()


def outcome(finished: generation_pb2.Finished) -> Outcome:
    return Outcome.from_proto(finished.outcome)
