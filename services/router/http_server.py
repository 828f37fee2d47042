"""uvicorn inside this process's event loop: socket bound before anything else, stop bounded, signals left alone."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Iterator

import structlog
import uvicorn
from starlette.types import ASGIApp

from services.common.address import join_address, split_address
from services.common.config import TlsConfig
from services.common.errors import ConfigError
from services.common.server import check_plaintext

BACKLOG = 512
"""Connections that the kernel holds until they are accepted."""

SPARE_CONNECTIONS = 256
"""Connections beside those of requests in flight: health checks, scrapes, clients that keep theirs open."""

_log = structlog.get_logger(__name__)


def bind_http(listen: str, tls: TlsConfig | None, *, allow_plaintext: bool) -> socket.socket:
    """A bound socket that does not listen yet. Raises ``ConfigError`` when the address is taken or not allowed."""
    if tls is None:
        check_plaintext(listen, allow_plaintext, "http_listen")
    host, port = split_address(listen)
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        raise ConfigError(f"http_listen: cannot bind {listen}: {error.strerror}") from None
    return bound


def bound_address(listen: str, bound: socket.socket) -> str:
    """``host:port`` with the host as configured and the port that was taken."""
    return join_address(split_address(listen)[0], bound.getsockname()[1])


class HttpServer:
    """Life: ``start`` -> ``wait_closed`` and ``stop``."""

    def __init__(self, app: ASGIApp, bound: socket.socket, tls: TlsConfig | None, max_requests: int) -> None:
        """Raises ``ConfigError`` for certificates that cannot be used."""
        mutual = tls is not None and tls.require_client_cert
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            lifespan="on",
            backlog=BACKLOG,
            limit_concurrency=max_requests + SPARE_CONNECTIONS,
            timeout_graceful_shutdown=1,
            ssl_certfile=tls.cert_file if tls else None,
            ssl_keyfile=tls.key_file if tls else None,
            ssl_ca_certs=str(tls.ca_file) if tls and tls.ca_file else None,
            ssl_cert_reqs=ssl.CERT_REQUIRED if mutual else ssl.CERT_NONE,
        )
        try:
            config.load()
        except OSError as error:
            raise ConfigError(f"http_tls: {error}") from None
        self._server = _Server(config)
        self._socket = bound
        self._task: asyncio.Task[None] | None = None

    @property
    def uvicorn_server(self) -> uvicorn.Server:
        """For vLLM's handlers, which expect it in the app's state."""
        return self._server

    async def start(self) -> None:
        """Accepts connections when it returns. Raises ``RuntimeError`` when the app does not start."""
        self._task = asyncio.create_task(self._server.serve(sockets=[self._socket]), name="http")
        up = asyncio.create_task(self._server.up.wait())
        await asyncio.wait([self._task, up], return_when=asyncio.FIRST_COMPLETED)
        up.cancel()
        if self._task.done() or not self._server.started:
            raise RuntimeError("the HTTP app did not start; see the log above")

    async def wait_closed(self) -> None:
        """Until the server ends, by ``stop`` or by itself."""
        if self._task is not None:
            await asyncio.shield(self._task)

    async def stop(self, timeout_s: float) -> None:
        """Closes the port and, after ``timeout_s``, what connections are left. Idempotent."""
        if self._task is None:
            return
        self._server.should_exit = True
        done, _ = await asyncio.wait([self._task], timeout=timeout_s)
        if not done:
            _log.warning("HTTP connections left; cut", after_s=timeout_s)
            self._server.force_exit = True
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


class _Server(uvicorn.Server):
    """The process handles its own signals, and wants to know when the port is open."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.up.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
