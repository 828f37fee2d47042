"""Typed asyncio client of a Forerun router.

    async with ForerunClient("127.0.0.1:50051") as client:
        async for event in client.generate("Once upon a time"):
            ...

Retries happen only where they cannot be seen: on UNAVAILABLE, and before the first event.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable
from types import TracebackType
from typing import Self, TypeVar

import grpc
import grpc.aio
from forerun.inference.v1 import service_pb2 as pb
from forerun.inference.v1 import service_pb2_grpc as pb_grpc
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_after_attempt

from services.client.convert import (
    Prompt,
    event_from_proto,
    model_info_from_proto,
    replicas_from_proto,
    set_prompt,
)
from services.client.deadline import Deadline
from services.client.types import ClientEvent, ModelInfo, ReplicaList
from services.common import convert
from services.common.config import ClientTlsConfig
from services.common.errors import RequestEndedError, invalid
from services.common.outcome import Outcome
from services.common.rpc import DEFAULT_MAX_MESSAGE_BYTES, aio_channel
from services.common.status import error_from_status
from services.common.types import Finished, SamplingOptions

UNARY_TIMEOUT_S = 5.0
FIRST_WAIT_S = 0.2
LONGEST_WAIT_S = 5.0

T = TypeVar("T")

_Call = grpc.aio.UnaryStreamCall[pb.GenerateRequest, pb.GenerateResponse]


class ForerunClient:
    """One router. Safe for any number of requests at once on one event loop; close it at the end."""

    def __init__(
        self,
        address: str,
        tls: ClientTlsConfig | None = None,
        api_key: str | None = None,
        *,
        attempts: int = 3,
        allow_plaintext: bool = False,
        max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
    ) -> None:
        """Connects lazily.

        Args:
            address: host:port of the router's gRPC edge.
            tls: None: plain text, on loopback only unless ``allow_plaintext``.
            api_key: sent with every call.
            attempts: how often a call is tried while nothing is serving; 1: no retries.

        Raises:
            ConfigError: a certificate is unreadable, or plain text is not allowed there.
        """
        self._channel = aio_channel(address, tls, max_message_bytes=max_message_bytes, allow_plaintext=allow_plaintext)
        self._stub = pb_grpc.InferenceServiceStub(self._channel)
        self._metadata = (("authorization", f"Bearer {api_key}"),) if api_key else ()
        self._attempts = attempts

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Ends the connection, and with it what is in flight."""
        await self._channel.close()

    async def generate(  # noqa: PLR0913  (fields of the request, by name)
        self,
        prompt: Prompt,
        sampling: SamplingOptions | None = None,
        *,
        model: str = "",
        request_id: str = "",
        priority: int = 0,
        tenant: str = "",
        final_only: bool = False,
        timeout_s: float | None = None,
        trace_context: tuple[str, str] = ("", ""),
    ) -> AsyncGenerator[ClientEvent, None]:
        """The answer to one prompt as it comes. Closing the generator early cancels the request.

        Args:
            prompt: text, token ids, ``ChatMessage``s, or a ``Chat`` with arguments for its template.
            sampling: None: vLLM's defaults.
            model: empty: the only one served.
            request_id: empty: the router chooses.
            priority: lower is served first, where the replica's policy is by priority.
            tenant: on whose behalf, where replicas share their time fairly; an API key's own tenant takes precedence.
            final_only: one delta a choice, at the end.
            timeout_s: for the whole request, retries included.
            trace_context: W3C traceparent and tracestate of the caller's span.

        Raises:
            RequestEndedError: it ended otherwise than by the engine.
        """
        message = pb.GenerateRequest(
            request_id=request_id, model=model, priority=priority, tenant=tenant, final_only=final_only
        )
        set_prompt(message, prompt)
        _set_sampling(message, sampling)
        context = [
            (name, text) for name, text in zip(("traceparent", "tracestate"), trace_context, strict=True) if text
        ]
        deadline = Deadline(timeout_s)
        call, first = await self._retrying(deadline, lambda: self._open(message, deadline, context))
        try:
            async for event in _events(call, first):
                yield event
        finally:
            call.cancel()

    async def model_info(self, timeout_s: float = UNARY_TIMEOUT_S) -> ModelInfo:
        """What is served. Raises ``RequestEndedError``."""
        deadline = Deadline(timeout_s)

        async def ask() -> pb.GetModelInfoResponse:
            request = pb.GetModelInfoRequest()
            return await self._stub.GetModelInfo(request, timeout=deadline.remaining_s(), metadata=self._metadata)

        return model_info_from_proto(await self._retrying(deadline, ask))

    async def list_replicas(self, timeout_s: float = UNARY_TIMEOUT_S) -> ReplicaList:
        """The replicas as the router sees them now. Raises ``RequestEndedError``."""
        deadline = Deadline(timeout_s)

        async def ask() -> pb.ListReplicasResponse:
            request = pb.ListReplicasRequest()
            return await self._stub.ListReplicas(request, timeout=deadline.remaining_s(), metadata=self._metadata)

        return replicas_from_proto(await self._retrying(deadline, ask))

    async def _open(
        self, message: pb.GenerateRequest, deadline: Deadline, context: list[tuple[str, str]]
    ) -> tuple[_Call, pb.GenerateResponse | None]:
        """The call and its first response; None when it ended without one."""
        metadata = (*self._metadata, *context)
        call: _Call = self._stub.Generate(message, timeout=deadline.remaining_s(), metadata=metadata)
        try:
            first = await call.read()
        except BaseException:
            call.cancel()
            raise
        return call, first if isinstance(first, pb.GenerateResponse) else None

    async def _retrying(self, deadline: Deadline, attempt: Callable[[], Awaitable[T]]) -> T:
        """``attempt()``, again while the router says that nothing serves. Raises ``RequestEndedError``."""
        retrying = AsyncRetrying(
            retry=retry_if_exception(_is_unavailable),
            stop=stop_after_attempt(self._attempts),
            wait=lambda state: deadline.cut(_wait_s(state)),
            reraise=True,
        )
        return await retrying(_translated, attempt)


async def _translated(attempt: Callable[[], Awaitable[T]]) -> T:
    try:
        return await attempt()
    except grpc.aio.AioRpcError as error:
        raise error_from_status(error.code(), error.details(), error.trailing_metadata()) from None


async def _events(call: _Call, first: pb.GenerateResponse | None) -> AsyncGenerator[ClientEvent, None]:
    response: object = first
    try:
        while isinstance(response, pb.GenerateResponse):
            event = event_from_proto(response)
            if event is not None:
                yield event
            if isinstance(event, Finished):
                return
            response = await call.read()
    except grpc.aio.AioRpcError as error:
        ended = error_from_status(error.code(), error.details(), error.trailing_metadata(), has_output=True)
        raise ended from None
    raise RequestEndedError(Outcome.INTERNAL, "the router's stream ended without an end of the request")


def _is_unavailable(error: BaseException) -> bool:
    return isinstance(error, RequestEndedError) and error.outcome is Outcome.REJECTED_UNAVAILABLE


def _wait_s(state: RetryCallState) -> float:
    """The router's hint, or twice as long each time."""
    error = state.outcome.exception() if state.outcome is not None else None
    hint_ms = error.retry_after_ms if isinstance(error, RequestEndedError) else None
    wait_s = FIRST_WAIT_S * 2 ** (state.attempt_number - 1) if hint_ms is None else hint_ms / 1e3
    return min(wait_s, LONGEST_WAIT_S)


def _set_sampling(message: pb.GenerateRequest, sampling: SamplingOptions | None) -> None:
    try:
        message.sampling.CopyFrom(convert.sampling_to_proto(sampling or SamplingOptions()))
    except ValueError as error:
        raise invalid("sampling", f"a number does not fit ({error})") from None
