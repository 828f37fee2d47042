"""The sending side of the hop to the next stage: one long-lived stream, fed without blocking the model thread.

Waking the event loop from the model thread gives it the interpreter's lock for as long as gRPC writes, half a
millisecond in which the model thread stands still. So a message may also wait for ``flush``, which the loop calls when
it takes the step's reply, a tenth of a millisecond later.
"""

import asyncio
from collections import deque

import grpc.aio
from forerun.stage.v1 import service_pb2 as pb
from forerun.stage.v1 import service_pb2_grpc

from services.workers.activations import ActivationsLostError


class ActivationSender:
    """Made, flushed and closed on the event loop; ``send`` is called from the model thread.

    The queues need no bound of their own: the scheduler keeps at most as many steps in flight as there are stages.
    """

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._channel = channel
        self._loop = asyncio.get_running_loop()
        self._unsent: deque[pb.PushActivationsRequest] = deque()
        self._queue: asyncio.Queue[pb.PushActivationsRequest | None] = asyncio.Queue()
        self._broken: str | None = None
        self._task = asyncio.create_task(self._run())

    def send(self, message: pb.PushActivationsRequest, *, at_once: bool) -> None:
        """Hands one step's activations on, ``at_once`` or with the next ``flush``, in order.

        Raises ``ActivationsLostError`` once the next stage is known to be gone.
        """
        if self._broken is not None:
            raise ActivationsLostError(self._broken)
        self._unsent.append(message)
        if at_once:
            self._loop.call_soon_threadsafe(self.flush)

    def flush(self) -> None:
        """Writes what waits."""
        while self._unsent:
            self._queue.put_nowait(self._unsent.popleft())

    async def close(self, timeout_s: float) -> None:
        """Sends what is queued, ends the stream, closes the channel; bounded."""
        self.flush()
        self._queue.put_nowait(None)
        await asyncio.wait([self._task], timeout=timeout_s)
        self._task.cancel()
        await self._channel.close()

    async def _run(self) -> None:
        # Written one by one: gRPC's own reading of a request iterator leaves tasks behind when the stream breaks.
        call = service_pb2_grpc.StageServiceStub(self._channel).PushActivations(wait_for_ready=True)
        try:
            while (message := await self._queue.get()) is not None:
                await call.write(message)
            await call.done_writing()
            await call
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            self._broken = f"the next stage is gone: {(await call.code()).name}: {await call.details()}"
