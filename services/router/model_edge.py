"""The part of a router that needs the model's files: the tokenizer, and the HTTP edge that is built over it."""

import asyncio
import importlib
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import structlog
from google.protobuf.message import Message

from services.common.daemon_thread import in_thread
from services.router.admission import Admission
from services.router.api_keys import ApiKeys
from services.router.change_signal import ChangeSignal
from services.router.config import RouterConfig
from services.router.generate import GenerateCall
from services.router.http_parts import HttpParts
from services.router.http_server import HttpServer, bind_http, bound_address
from services.router.metrics import RouterMetrics
from services.router.rendering import PromptRenderer, TokensOnly
from services.router.replica_pool import ReplicaPool

if TYPE_CHECKING:
    from services.router.vllm_edge import VllmEdge

HTTP_STOP_TIMEOUT_S = 3.0

_log = structlog.get_logger(__name__)


class ModelEdge:
    """Life: ``bind`` -> ``run`` (loads, then serves HTTP) -> ``stop``. Without a tokenizer it is ready at once."""

    def __init__(
        self,
        config: RouterConfig,
        keys: ApiKeys,
        pool: ReplicaPool,
        changed: ChangeSignal,
        metrics: RouterMetrics,
        list_replicas: Callable[[], Message],
    ) -> None:
        self._config = config
        self._keys = keys
        self._pool = pool
        self._changed = changed
        self._metrics = metrics
        self._list_replicas = list_replicas
        self._socket: socket.socket | None = None
        self._server: HttpServer | None = None
        self._renderer: PromptRenderer | None = None if config.tokenizer else TokensOnly()
        self.is_ready = not config.tokenizer
        """Tokenizer loaded and HTTP up, as far as they are configured."""

    @property
    def renderer(self) -> PromptRenderer | None:
        """None until it is loaded."""
        return self._renderer

    @property
    def address(self) -> str | None:
        """``host:port`` of the HTTP edge, once bound."""
        listen = self._config.http_listen
        return None if listen is None or self._socket is None else bound_address(listen, self._socket)

    def bind(self) -> None:
        """Takes the HTTP port; connections are refused until ``run`` serves it. Raises ``ConfigError``."""
        config = self._config
        if config.http_listen is not None:
            allowed = config.server.allow_plaintext
            self._socket = bind_http(config.http_listen, config.http_tls, allow_plaintext=allowed)

    async def run(self, call: GenerateCall, admission: Admission) -> None:
        """Loads what the first replica (or the configuration) names, serves HTTP, and stays until cancelled.

        Raises ``ConfigError`` when the model's files or ``http_args`` cannot be used.
        """
        if self._config.tokenizer:
            edge = await self._load()
            self._renderer = edge.renderer
            if self._socket is not None:
                await self._serve_http(edge, self._socket, call, admission)
            self.is_ready = True
            self._changed.notify()
        if self._server is None:
            await asyncio.Event().wait()
        else:
            await self._server.wait_closed()

    async def stop(self) -> None:
        """Ends HTTP; bounded and idempotent."""
        if self._server is not None:
            await self._server.stop(HTTP_STOP_TIMEOUT_S)
        if self._socket is not None:
            self._socket.close()

    async def _load(self) -> "VllmEdge":
        # Importing vLLM takes many seconds, which the replicas' own start covers.
        importing = asyncio.ensure_future(in_thread(_import_vllm_edge))
        _log.info("waiting for the first replica to say which model it serves")
        info = await self._pool.first_info()
        model = self._config.model or info.model
        _log.info("loading the tokenizer", model=model)
        module = await importing
        edge: VllmEdge = await in_thread(lambda: module.load_vllm_edge(model, info, self._config.http_args))
        _log.info("tokenizer loaded", model=model)
        return edge

    async def _serve_http(
        self, edge: "VllmEdge", bound: socket.socket, call: GenerateCall, admission: Admission
    ) -> None:
        config = self._config
        parts = HttpParts(
            call, self._pool, admission, self._keys, self._metrics, config.max_request_bytes, self._list_replicas
        )
        app, state = await edge.http_app(parts)
        server = HttpServer(app, bound, config.http_tls, config.max_concurrent_requests)
        state.server = server.uvicorn_server
        await server.start()
        self._server = server
        _log.info("HTTP edge serving", address=self.address)


def _import_vllm_edge() -> Any:
    return importlib.import_module("services.router.vllm_edge")
