"""Turns what a servicer method raises into a gRPC status, for all methods of a server in one place."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing
from inspect import isasyncgenfunction, iscoroutinefunction
from typing import Any

import grpc
import grpc.aio
import structlog
from google.protobuf.message import DecodeError

from services.common.errors import RequestEndedError, invalid
from services.common.outcome import Outcome

OUTCOME_KEY = "forerun-outcome"
FIELD_KEY = "forerun-field"
RETRY_AFTER_KEY = "forerun-retry-after-ms"

_MAX_DETAIL_CHARACTERS = 2048
"""Statuses travel in HTTP/2 trailers, which peers bound."""

_log = structlog.get_logger(__name__)

Handler = Any
"""grpc.RpcMethodHandler; its constructor functions return it untyped."""


async def abort_with(context: grpc.aio.ServicerContext[Any, Any], error: RequestEndedError) -> None:
    """Ends the call with the error's status, message and trailing metadata. Never returns: raises ``AbortError``."""
    await context.abort(status_code(error), _detail(error.message), trailing_metadata(error))


def status_code(error: RequestEndedError) -> grpc.StatusCode:
    """The outcome's status, or NOT_FOUND when the field names something that does not exist."""
    return grpc.StatusCode.NOT_FOUND if error.not_found else error.outcome.status_code


def trailing_metadata(error: RequestEndedError) -> tuple[tuple[str, str], ...]:
    """Outcome, and where they apply the field at fault and the retry hint."""
    metadata = [(OUTCOME_KEY, error.outcome.value)]
    if error.field:
        metadata.append((FIELD_KEY, _ascii(error.field)))
    if error.retry_after_ms is not None:
        metadata.append((RETRY_AFTER_KEY, str(error.retry_after_ms)))
    return tuple(metadata)


def error_from_status(
    code: grpc.StatusCode,
    details: str | None,
    trailing: grpc.aio.Metadata | Sequence[tuple[str, str | bytes]] | None,
    *,
    has_output: bool = False,
) -> RequestEndedError:
    """The client's side of ``abort_with``: what a peer ended a call with.

    Without our metadata (a lost connection, a proxy, gRPC itself) the outcome follows from the code; UNAVAILABLE
    then means REPLICA_LOST when the call ``has_output`` already, since a retry would not be invisible.
    """
    metadata = {key: value for key, value in trailing or () if isinstance(value, str)}
    outcome = _OUTCOMES.get(metadata.get(OUTCOME_KEY, "")) or _OUTCOME_OF_CODE.get(code, Outcome.INTERNAL)
    if OUTCOME_KEY not in metadata and has_output and outcome is Outcome.REJECTED_UNAVAILABLE:
        outcome = Outcome.REPLICA_LOST
    retry_after = metadata.get(RETRY_AFTER_KEY, "")
    return RequestEndedError(
        outcome,
        details or code.name,
        field=metadata.get(FIELD_KEY, ""),
        retry_after_ms=int(retry_after) if retry_after.isdecimal() else None,
        not_found=code is grpc.StatusCode.NOT_FOUND,
    )


class StatusInterceptor(grpc.aio.ServerInterceptor):
    """``RequestEndedError`` to its status; any other exception to INTERNAL, logged, with no internals in the message.

    Also refuses, as INVALID_ARGUMENT, requests that cannot be parsed (such as invalid UTF-8) or are larger than
    ``max_message_bytes``; plain gRPC would answer UNKNOWN and RESOURCE_EXHAUSTED, which invite a retry.
    Cancellation passes through, and a handler's generator is closed before the call ends.
    """

    def __init__(self, max_message_bytes: int) -> None:
        self._max_message_bytes = max_message_bytes

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        """Wraps the method's handler; called by gRPC once a call."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        method = handler_call_details.method
        deserializer = _Deserializer(handler.request_deserializer, self._max_message_bytes)
        if handler.request_streaming and handler.response_streaming:
            return grpc.stream_stream_rpc_method_handler(
                _responding(handler.stream_stream, method), deserializer, handler.response_serializer
            )
        if handler.request_streaming:
            return grpc.stream_unary_rpc_method_handler(
                _returning(handler.stream_unary, method), deserializer, handler.response_serializer
            )
        if handler.response_streaming:
            return grpc.unary_stream_rpc_method_handler(
                _responding(handler.unary_stream, method), deserializer, handler.response_serializer
            )
        return grpc.unary_unary_rpc_method_handler(
            _returning(handler.unary_unary, method), deserializer, handler.response_serializer
        )


class _Unreadable:
    """Stands for a request that could not be parsed, until a place is reached that may abort the call."""

    def __init__(self, error: RequestEndedError) -> None:
        self.error = error


class _Deserializer:
    def __init__(self, inner: Callable[[bytes], Any] | None, max_bytes: int) -> None:
        self._inner = inner
        self._max_bytes = max_bytes

    def __call__(self, content: bytes) -> Any:
        if len(content) > self._max_bytes:
            return _Unreadable(
                invalid("message", f"{len(content)} bytes, at most {self._max_bytes} (max_message_bytes) are taken")
            )
        if self._inner is None:
            return content
        try:
            return self._inner(content)
        except DecodeError:
            return _Unreadable(invalid("message", "not a valid protobuf message; text fields must be valid UTF-8"))


class _ReadableRequests:
    """A request stream that raises where a message could not be parsed."""

    def __init__(self, requests: AsyncIterator[Any]) -> None:
        self._requests = requests

    def __aiter__(self) -> "_ReadableRequests":
        return self

    async def __anext__(self) -> Any:
        return _readable(await self._requests.__anext__())


def _readable(request: Any) -> Any:
    if isinstance(request, _Unreadable):
        raise request.error
    return _ReadableRequests(request) if hasattr(request, "__anext__") else request


def _returning(behaviour: Callable[..., Any], method: str) -> Callable[..., Any]:
    """Wraps a method that returns one response."""

    async def call(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        try:
            return await behaviour(_readable(request), context)
        except Exception as error:  # noqa: BLE001  (the one place that may not let anything through)
            await _end(context, method, error)

    return call if iscoroutinefunction(behaviour) else behaviour


def _responding(behaviour: Callable[..., Any], method: str) -> Callable[..., Any]:
    """Wraps a method that streams responses, as a generator or through ``context.write``."""

    async def generate(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        try:
            # gRPC would leave a cancelled call's generator to the garbage collector; its `finally` must run now.
            async with aclosing(behaviour(_readable(request), context)) as responses:
                async for response in responses:
                    await context.write(response)
        except Exception as error:  # noqa: BLE001
            await _end(context, method, error)

    return generate if isasyncgenfunction(behaviour) else _returning(behaviour, method)


async def _end(context: grpc.aio.ServicerContext[Any, Any], method: str, error: Exception) -> None:
    if isinstance(error, grpc.aio.AbortError):
        raise error
    if isinstance(error, RequestEndedError):
        await abort_with(context, error)
    request_id = structlog.contextvars.get_contextvars().get("request_id", "")
    _log.error("call failed", method=method, exc_info=error)
    hint = f"; request id {request_id}" if request_id else ""
    await abort_with(context, RequestEndedError(Outcome.INTERNAL, f"internal error{hint}; see the service's log"))


def _detail(message: str) -> str:
    return message.encode("utf-8", "replace").decode("utf-8")[:_MAX_DETAIL_CHARACTERS]


def _ascii(text: str) -> str:
    """Metadata values are printable ASCII."""
    return "".join(character if " " <= character <= "~" else "?" for character in text)[:256]


_OUTCOMES = {outcome.value: outcome for outcome in Outcome}

_OUTCOME_OF_CODE = {
    grpc.StatusCode.CANCELLED: Outcome.CANCELLED,
    grpc.StatusCode.DEADLINE_EXCEEDED: Outcome.DEADLINE,
    grpc.StatusCode.RESOURCE_EXHAUSTED: Outcome.REJECTED_OVERLOAD,
    grpc.StatusCode.INVALID_ARGUMENT: Outcome.REJECTED_INVALID,
    grpc.StatusCode.NOT_FOUND: Outcome.REJECTED_INVALID,
    grpc.StatusCode.UNAVAILABLE: Outcome.REJECTED_UNAVAILABLE,
    grpc.StatusCode.ABORTED: Outcome.REPLICA_LOST,
}
