"""The engine-core process's connections to its stages: one asyncio loop on one thread, one Execute stream a stage.

The engine core is synchronous, so everything here is called from its thread and runs on the loop's; replies and
losses come back as callbacks on the loop's thread. Nothing polls: the loop sleeps until a stage or the engine speaks.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import grpc.aio
from forerun.stage.v1 import service_pb2 as pb
from forerun.stage.v1 import service_pb2_grpc

from services.common.config import ClientTlsConfig
from services.common.rpc import aio_channel

T = TypeVar("T")
_ExecuteCall: TypeAlias = "grpc.aio.StreamStreamCall[pb.ExecuteRequest, pb.ExecuteResponse]"

_CLOSE_TIMEOUT_S = 5.0
_STREAM_END_S = 2.0


class StageLostError(RuntimeError):
    """A stage refused, failed or went away; the message names it."""


@dataclass(frozen=True)
class StageLinkOptions:
    """How to reach the stages."""

    tls: ClientTlsConfig | None
    allow_plaintext: bool
    max_message_bytes: int
    connect_timeout_s: float
    """Longest wait for a stage process that is still starting."""
    call_timeout_s: float
    """Longest set-up call; loading a large model takes minutes."""


@dataclass
class _Link:
    """One stage's stub and the plans on their way to it."""

    rank: int
    address: str
    channel: grpc.aio.Channel
    stub: "service_pb2_grpc.StageServiceAsyncStub"
    plans: asyncio.Queue[pb.ExecuteRequest | None]


class StageLinks:
    """Connections to all ranks of one replica, in rank order (pipeline-major)."""

    def __init__(
        self,
        addresses: Sequence[str],
        options: StageLinkOptions,
        on_reply: Callable[[int, pb.ExecuteResponse], None],
        on_lost: Callable[[StageLostError], None],
    ) -> None:
        """Starts the loop's thread; nothing is dialled before ``configure``.

        Args:
            addresses: host:port by rank.
            options: how to reach them.
            on_reply: called with (rank, reply) on the loop's thread; must not block.
            on_lost: called once with the first loss on the loop's thread.
        """
        self._options = options
        self._on_reply = on_reply
        self._on_lost = on_lost
        self._closing = False
        self._lost = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="stage-links", daemon=True)
        self._thread.start()
        self._links = self._await(self._open(addresses), options.connect_timeout_s)
        self._streams: list[Future[None]] = []

    def configure(self, requests: Sequence[pb.ConfigureRequest]) -> list[pb.ConfigureResponse]:
        """Configures every rank and opens its Execute stream, whose end is how a stage learns that we are gone.

        Rank 0 goes first: it may choose the rendezvous of all. Raises ``StageLostError``.
        """
        timeout = self._options.connect_timeout_s
        first = self._await(self._configure(self._links[0], requests[0]), timeout)
        for request in requests:
            request.rendezvous_address = first.rendezvous_address
        pairs = zip(self._links[1:], requests[1:], strict=True)
        others = self._await(_gather(self._configure(link, request) for link, request in pairs), timeout)
        self._streams = [asyncio.run_coroutine_threadsafe(self._stream(link), self._loop) for link in self._links]
        return [first, *others]

    def call(self, requests: Sequence[pb.CallWorkerRequest]) -> list[bytes]:
        """One worker call on every rank at the same time; results by rank. Raises ``StageLostError``."""
        calls = _gather(self._call(link, request) for link, request in zip(self._links, requests, strict=True))
        return self._await(calls, self._options.call_timeout_s)

    def send(self, plan: pb.ExecuteRequest, ranks: Sequence[int] | None = None) -> None:
        """Queues a plan to all ranks, or to some, in order; never blocks."""
        self._loop.call_soon_threadsafe(self._enqueue, plan, ranks)

    def call_periodically(self, interval_s: float, function: Callable[[], None]) -> None:
        """Runs ``function`` on the loop's thread until ``close``."""

        async def run() -> None:
            while not self._closing:
                await asyncio.sleep(interval_s)
                function()

        asyncio.run_coroutine_threadsafe(run(), self._loop)

    def close(self) -> None:
        """Ends the streams, upon which the stages exit; bounded; safe to call twice."""
        if self._closing:
            return
        self._closing = True
        try:
            self._await(self._close(), _CLOSE_TIMEOUT_S)
        except StageLostError:
            pass  # The stages are leaving or gone; that is what was wanted.
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_CLOSE_TIMEOUT_S)

    def _await(self, coroutine: Coroutine[Any, Any, T], timeout_s: float) -> T:
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result(timeout_s)
        except TimeoutError:
            future.cancel()
            raise StageLostError(f"the stages did not answer within {timeout_s:g} s") from None

    async def _open(self, addresses: Sequence[str]) -> list[_Link]:
        return [self._link(rank, address) for rank, address in enumerate(addresses)]

    def _link(self, rank: int, address: str) -> _Link:
        options = self._options
        channel = aio_channel(
            address,
            options.tls,
            max_message_bytes=options.max_message_bytes,
            allow_plaintext=options.allow_plaintext,
        )
        return _Link(rank, address, channel, service_pb2_grpc.StageServiceStub(channel), asyncio.Queue())

    async def _configure(self, link: _Link, request: pb.ConfigureRequest) -> pb.ConfigureResponse:
        with _naming(link):
            return await link.stub.Configure(request, wait_for_ready=True)

    async def _call(self, link: _Link, request: pb.CallWorkerRequest) -> bytes:
        with _naming(link):
            return (await link.stub.CallWorker(request)).result

    async def _stream(self, link: _Link) -> None:
        try:
            with _naming(link):
                call = link.stub.Execute()
                writer = asyncio.create_task(self._write_plans(link, call))
                try:
                    async for reply in call:
                        self._on_reply(link.rank, reply)
                finally:
                    writer.cancel()
            raise StageLostError(f"stage {link.rank} at {link.address} ended its stream")
        except StageLostError as error:
            if not self._closing and not self._lost:
                self._lost = True
                self._on_lost(error)

    async def _write_plans(self, link: _Link, call: _ExecuteCall) -> None:
        # Written one by one: gRPC's own reading of a request iterator leaves tasks behind when the stream breaks.
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            while (plan := await link.plans.get()) is not None:
                await call.write(plan)
            await call.done_writing()

    def _enqueue(self, plan: pb.ExecuteRequest, ranks: Sequence[int] | None) -> None:
        for link in self._links if ranks is None else (self._links[rank] for rank in ranks):
            link.plans.put_nowait(plan)

    async def _close(self) -> None:
        for link in self._links:
            link.plans.put_nowait(None)
        if self._streams:
            await asyncio.wait([asyncio.wrap_future(stream) for stream in self._streams], timeout=_STREAM_END_S)
        for link in self._links:
            await link.channel.close()


class _naming:  # noqa: N801  reads as a statement: with _naming(link)
    """Turns a gRPC failure into ``StageLostError`` that names the stage."""

    def __init__(self, link: _Link) -> None:
        self._link = link

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, grpc.aio.AioRpcError):
            raise StageLostError(
                f"stage {self._link.rank} at {self._link.address}: {error.code().name}: {error.details()}"
            ) from error


async def _gather(coroutines: Any) -> list[Any]:
    return list(await asyncio.gather(*coroutines))
