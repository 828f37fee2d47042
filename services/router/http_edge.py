"""The HTTP edge around vLLM's app, as one ASGI middleware: API key, body limit, true statuses.

vLLM begins a streamed response with 200 before the engine has said anything. Here the head of such a response waits
for its first event, so that a request that is refused ends in 429 or 400, with a retry hint, as one without streaming.
"""

import asyncio
import contextlib
import json
from collections.abc import Callable

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.common.errors import RequestEndedError
from services.common.outcome import Outcome
from services.common.types import ExpertChoice
from services.router.api_keys import ApiKeys
from services.router.http_exchange import CURRENT_EXCHANGE, HttpExchange

OPEN_PATHS = frozenset({"/health", "/ping", "/metrics", "/version"})
"""What monitoring reads without a key."""

COUNTED_PREFIX = "/v1/"
"""Where requests are sent that count as such."""

TRACE_ID_HEADER = "forerun-trace-id"
EXPERT_HEADER = "forerun-expert"
"""Who drafts, as ``ngram;depth=8;reason=learned``; the scores are in the trace."""

TENANT_HEADER = "forerun-tenant"
"""On whose behalf a request is; the API key's own tenant takes precedence."""

DISCARD_BYTES = 64 * 2**20
DISCARD_TIMEOUT_S = 5.0
"""What is still read, and thrown away, of a body that is refused: most clients look for the answer only when they
have sent everything, and a connection closed before that shows them no answer but a broken connection."""

ErrorBody = Callable[[RequestEndedError], tuple[int, bytes]]
"""Status and JSON body in the app's own error shape."""


class HttpEdge:
    """See the module."""

    def __init__(
        self,
        app: ASGIApp,
        keys: ApiKeys,
        max_body_bytes: int,
        error_body: ErrorBody,
        on_refused: Callable[[Outcome], None],
    ) -> None:
        """``on_refused`` counts requests that end before the domain call could."""
        self._app = app
        self._keys = keys
        self._max_body_bytes = max_body_bytes
        self._error_body = error_body
        self._on_refused = on_refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One exchange."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        if scope["type"] != "http":
            if self._keys.allow(headers.get("authorization", "")):
                await self._app(scope, receive, send)
            else:
                await send({"type": "websocket.close", "code": 1008})
            return
        tenant = self._keys.tenant(headers.get("authorization", "")) or headers.get(TENANT_HEADER, "")
        exchange = HttpExchange({key.lower(): value for key, value in headers.items()}, tenant)
        send = self._counting(scope, exchange, send)
        body = _BoundedBody(receive, self._max_body_bytes)
        if scope["path"] not in OPEN_PATHS and not self._keys.allow(headers.get("authorization", "")):
            await _send_json(send, 401, b'{"error":"Unauthorized"}', {"www-authenticate": "Bearer"})
        elif not body.admits(headers.get("content-length", "0")):
            await body.refuse(send, headers)
        else:
            await self._exchange(scope, headers, exchange, body, send)

    async def _exchange(
        self, scope: Scope, headers: Headers, exchange: HttpExchange, body: "_BoundedBody", send: Send
    ) -> None:
        token = CURRENT_EXCHANGE.set(exchange)
        try:
            response = _Response(exchange, headers, send, body, self._error_body)
            await self._app(scope, body.receive, response.send)
        finally:
            CURRENT_EXCHANGE.reset(token)

    def _counting(self, scope: Scope, exchange: HttpExchange, send: Send) -> Send:
        if scope["method"] != "POST" or not scope["path"].startswith(COUNTED_PREFIX):
            return send

        async def counting(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] >= 400 and not exchange.is_counted:
                exchange.is_counted = True
                self._on_refused(_OUTCOMES.get(message["status"]) or _outcome_of_class(message["status"]))
            await send(message)

        return counting


class _BoundedBody:
    """A request body that stops at its limit."""

    def __init__(self, receive: Receive, max_bytes: int) -> None:
        self._receive = receive
        self._max_bytes = max_bytes
        self._seen = 0

    @property
    def is_too_large(self) -> bool:
        return self._seen > self._max_bytes

    def admits(self, content_length: str) -> bool:
        """False when the announced length is over the limit; a wrong announcement is the server's to refuse."""
        return not content_length.isdecimal() or int(content_length) <= self._max_bytes

    async def receive(self) -> Message:
        """The next piece; past the limit the body ends there, and the answer will say why."""
        message = await self._receive()
        self._seen += len(message.get("body", b""))
        if message["type"] == "http.request" and self.is_too_large:
            return {"type": "http.request", "body": b"", "more_body": False}
        return message

    async def refuse(self, send: Send, headers: Headers) -> None:
        """413, after what the client is sending anyway, and the connection closed."""
        if headers.get("expect", "").lower() != "100-continue":
            await self._discard(headers.get("content-length", "0"))
        text = f"the request body is over {self._max_bytes} bytes (max_request_bytes)"
        error = {"message": text, "type": "Request Entity Too Large", "param": None, "code": 413}
        await _send_json(send, 413, json.dumps({"error": error}).encode(), {"connection": "close"})

    async def _discard(self, content_length: str) -> None:
        if content_length.isdecimal() and int(content_length) > DISCARD_BYTES:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DISCARD_TIMEOUT_S):
                while self._seen <= DISCARD_BYTES:
                    message = await self._receive()
                    self._seen += len(message.get("body", b""))
                    if not message.get("more_body"):
                        return


class _Response:
    """Passes a response on; holds back the head of a stream until its first event shows what it will be."""

    def __init__(
        self, exchange: HttpExchange, headers: Headers, send: Send, body: _BoundedBody, error_body: ErrorBody
    ) -> None:
        self._exchange = exchange
        self._headers = headers
        self._send = send
        self._body = body
        self._error_body = error_body
        self._held: Message | None = None
        self._is_replaced = False

    async def send(self, message: Message) -> None:
        """What the app sends."""
        if self._is_replaced:
            return
        if message["type"] == "http.response.start":
            await self._start(message)
        elif self._held is not None:
            await self._first_event(message)
        else:
            await self._send(message)

    async def _start(self, message: Message) -> None:
        if self._body.is_too_large:
            self._is_replaced = True
            await self._body.refuse(self._send, self._headers)
        elif Headers(raw=message["headers"]).get("content-type", "").startswith("text/event-stream"):
            self._held = message
        else:
            await self._send(self._with_headers(message))

    async def _first_event(self, message: Message) -> None:
        if message["type"] == "http.response.body" and not message.get("body") and message.get("more_body"):
            return
        exchange, head = self._exchange, self._held
        self._held = None
        if exchange.ended is not None and not exchange.has_output:
            self._is_replaced = True
            status, body = self._error_body(exchange.ended)
            await _send_json(self._send, status, body, _retry_after(exchange.ended))
        elif head is not None:
            await self._send(self._with_headers(head))
            await self._send(message)

    def _with_headers(self, message: Message) -> Message:
        headers = MutableHeaders(raw=list(message["headers"]))
        if self._exchange.trace_id:
            headers[TRACE_ID_HEADER] = self._exchange.trace_id
        if (choice := self._exchange.expert_choice) is not None:
            headers[EXPERT_HEADER] = _shown(choice)
        if self._exchange.ended is not None:
            headers.update(_retry_after(self._exchange.ended))
        return {**message, "headers": headers.raw}


def _retry_after(error: RequestEndedError) -> dict[str, str]:
    """Whole seconds, rounded up, as HTTP has it."""
    return {} if error.retry_after_ms is None else {"retry-after": str(-(-error.retry_after_ms // 1000))}


_OUTCOMES = {429: Outcome.REJECTED_OVERLOAD, 503: Outcome.REJECTED_UNAVAILABLE}


def _outcome_of_class(status: int) -> Outcome:
    return Outcome.REJECTED_INVALID if status < 500 or status == 501 else Outcome.INTERNAL


async def _send_json(send: Send, status: int, body: bytes, headers: dict[str, str]) -> None:
    fields = {"content-type": "application/json", "content-length": str(len(body)), **headers}
    raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in fields.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body, "more_body": False})


def _shown(choice: ExpertChoice) -> str:
    depth = "" if choice.first_draft_tokens is None else f";depth={choice.first_draft_tokens}"
    return f"{choice.expert or 'auto'}{depth};reason={choice.reason}"
