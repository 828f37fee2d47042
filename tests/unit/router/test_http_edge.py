"""The HTTP middleware over small apps: keys, body limits, and streams whose status waits for their first event."""

import asyncio
import json
from collections.abc import Awaitable, Callable

import httpx
import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from services.common.errors import RequestEndedError, invalid, overloaded
from services.common.outcome import Outcome
from services.router.api_keys import ApiKeys
from services.router.http_edge import HttpEdge
from services.router.http_exchange import CURRENT_EXCHANGE

Body = Callable[[Receive, Send], Awaitable[None]]


def error_body(error: RequestEndedError) -> tuple[int, bytes]:
    return error.outcome.http_status, json.dumps({"error": {"message": error.message}}).encode()


def edge(
    app: ASGIApp, keys: tuple[str, ...] = (), limit: int = 100, refused: list[Outcome] | None = None
) -> httpx.AsyncClient:
    count = (refused if refused is not None else []).append
    transport = httpx.ASGITransport(HttpEdge(app, ApiKeys(keys), limit, error_body, count))
    return httpx.AsyncClient(transport=transport, base_url="http://router.test")


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    size = 0
    while True:
        message = await receive()
        size += len(message.get("body", b""))
        if not message.get("more_body"):
            break
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": str(size).encode()})


def stream(*chunks: bytes | Callable[[], None]) -> ASGIApp:
    """An event stream; a callable among its chunks is called when its turn comes."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for chunk in chunks:
            if isinstance(chunk, bytes):
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            else:
                chunk()
        await send({"type": "http.response.body", "body": b""})

    return app


async def tell_tenant(scope: Scope, receive: Receive, send: Send) -> None:
    exchange = CURRENT_EXCHANGE.get()
    assert exchange is not None
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": exchange.tenant.encode()})


@pytest.mark.parametrize(
    ("key", "stated", "tenant"),
    [("hers", "", "team-a"), ("hers", "team-b", "team-a"), ("anybodys", "team-b", "team-b"), ("anybodys", "", "")],
)
async def test_the_key_says_whose_a_request_is_before_the_client_does(key: str, stated: str, tenant: str) -> None:
    async with edge(tell_tenant, ("hers team-a", "anybodys")) as client:
        headers = {"authorization": f"Bearer {key}", "forerun-tenant": stated}
        assert (await client.post("/v1/completions", headers=headers)).text == tenant


def ends_with(error: RequestEndedError, *, has_output: bool = False) -> Callable[[], None]:
    def note() -> None:
        exchange = CURRENT_EXCHANGE.get()
        assert exchange is not None
        exchange.ended, exchange.has_output = error, has_output

    return note


async def test_a_key_opens_and_monitoring_is_open_anyway() -> None:
    async with edge(echo, keys=("secret",)) as client:
        assert (await client.post("/v1/completions")).status_code == 401
        assert (await client.get("/forerun/replicas")).status_code == 401
        assert (await client.post("/tokenize", headers={"authorization": "Bearer wrong"})).status_code == 401
        allowed = await client.post("/v1/completions", headers={"authorization": "Bearer secret"})
        assert allowed.status_code == 200
        for path in ("/health", "/metrics", "/ping", "/version"):
            assert (await client.get(path)).status_code == 200


async def test_an_announced_body_over_the_limit_is_refused_unread() -> None:
    async def unreachable(scope: Scope, receive: Receive, send: Send) -> None:
        raise AssertionError

    async with edge(unreachable) as client:
        answer = await client.post("/v1/completions", content=b"x" * 101)
    assert answer.status_code == 413
    assert "max_request_bytes" in answer.json()["error"]["message"]
    assert answer.headers["connection"] == "close"


async def test_a_body_of_unknown_length_stops_at_the_limit() -> None:
    async def pieces():  # type: ignore[no-untyped-def]
        for _ in range(20):
            yield b"x" * 10
            await asyncio.sleep(0)

    async with edge(echo) as client:
        assert (await client.post("/v1/completions", content=pieces())).status_code == 413


async def test_a_body_at_the_limit_passes() -> None:
    async with edge(echo) as client:
        assert (await client.post("/v1/completions", content=b"x" * 100)).text == "100"


@pytest.mark.parametrize(
    ("error", "status", "retry_after"),
    [
        (overloaded("full", 1500), 429, "2"),
        (invalid("prompt", "is empty"), 400, None),
        (RequestEndedError(Outcome.DEADLINE, "late"), 504, None),
    ],
)
async def test_a_stream_refused_before_its_first_event_has_the_true_status(
    error: RequestEndedError, status: int, retry_after: str | None
) -> None:
    async with edge(stream(ends_with(error), b"data: {}\n\n", b"data: [DONE]\n\n")) as client:
        answer = await client.post("/v1/completions")
    assert answer.status_code == status
    assert answer.headers.get("retry-after") == retry_after
    assert answer.json() == {"error": {"message": error.message}}


async def test_a_stream_with_output_stays_a_stream_whatever_ends_it() -> None:
    lost = RequestEndedError(Outcome.REPLICA_LOST, "gone")
    async with edge(stream(b"data: 1\n\n", ends_with(lost, has_output=True), b"data: error\n\n")) as client:
        answer = await client.post("/v1/completions")
    assert (answer.status_code, answer.text) == (200, "data: 1\n\ndata: error\n\n")


async def test_one_refused_prompt_of_several_does_not_replace_the_others() -> None:
    refused = ends_with(overloaded("full", 1000), has_output=True)
    async with edge(stream(refused, b"data: 1\n\n")) as client:
        answer = await client.post("/v1/completions")
    assert (answer.status_code, answer.text) == (200, "data: 1\n\n")


async def test_the_trace_id_and_the_retry_hint_are_headers() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        exchange = CURRENT_EXCHANGE.get()
        assert exchange is not None
        assert exchange.headers["traceparent"] == "00-1-2-01"
        exchange.trace_id, exchange.ended = "ab" * 16, overloaded("full", 1)
        await send({"type": "http.response.start", "status": 429, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    async with edge(app) as client:
        answer = await client.post("/v1/completions", headers={"Traceparent": "00-1-2-01"})
    assert answer.headers["forerun-trace-id"] == "ab" * 16
    assert answer.headers["retry-after"] == "1"
    assert CURRENT_EXCHANGE.get() is None


async def test_an_empty_stream_passes() -> None:
    async with edge(stream()) as client:
        answer = await client.post("/v1/completions")
    assert (answer.status_code, answer.text) == (200, "")


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        (400, Outcome.REJECTED_INVALID),
        (404, Outcome.REJECTED_INVALID),
        (429, Outcome.REJECTED_OVERLOAD),
        (503, Outcome.REJECTED_UNAVAILABLE),
        (501, Outcome.REJECTED_INVALID),
        (500, Outcome.INTERNAL),
    ],
)
async def test_what_ends_before_the_domain_call_counts_once(status: int, outcome: Outcome) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        exchange = CURRENT_EXCHANGE.get()
        assert exchange is not None
        exchange.is_counted = scope["path"] == "/v1/counted"
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    refused: list[Outcome] = []
    async with edge(app, ("secret",), refused=refused) as client:
        client.headers["authorization"] = "Bearer secret"
        for path in ("/v1/completions", "/v1/counted", "/tokenize"):
            assert (await client.post(path)).status_code == status
        assert (await client.get("/v1/models")).status_code == status
        assert refused == [outcome]
        assert (await client.post("/v1/completions", content=b"x" * 101)).status_code == 413
        assert (await client.post("/v1/completions", headers={"authorization": ""})).status_code == 401
    assert refused == [outcome, Outcome.REJECTED_INVALID, Outcome.REJECTED_INVALID]
