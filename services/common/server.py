"""The life of a gRPC server: bind checked, health truthful, statuses mapped, stop ordered and bounded."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import grpc
import grpc.aio
import structlog
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from services.common.address import is_loopback, join_address, split_address
from services.common.config import ServerConfig, TlsConfig
from services.common.errors import ConfigError
from services.common.rpc import read_pem, server_options
from services.common.signals import StopSignal, run_until_signal
from services.common.status import StatusInterceptor, abort_with

__all__ = ["GrpcServer", "StopSignal", "abort_with", "run_until_signal"]

HEALTH_TIMEOUT_S = 2.0
"""A health change waits this long for a watcher that does not read."""

STOP_GRACE_S = 2.0
"""What calls still get, after the drain, before they are cancelled."""

CANCEL_TIMEOUT_S = 3.0
"""What cancelled calls get to clean up."""

_log = structlog.get_logger(__name__)


class GrpcServer:
    """One asyncio server: health overall and per service, reflection, status mapping, ordered stop.

    1. Register servicers on ``.server``. 2. ``start()`` binds; health says NOT_SERVING. 3. ``set_serving(True)``
    when the service can do its job. 4. ``stop(drain)``: NOT_SERVING, drain, stop; each bounded.
    """

    def __init__(
        self,
        config: ServerConfig,
        service_names: Sequence[str],
        interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
    ) -> None:
        self._config = config
        self._serving = dict.fromkeys(service_names, False)
        self._health = health.aio.HealthServicer()
        self._bound_port = 0
        self._stopping: asyncio.Future[None] | None = None
        self.server = grpc.aio.server(
            interceptors=[StatusInterceptor(config.max_message_bytes), *interceptors],
            options=server_options(config.max_message_bytes),
            maximum_concurrent_rpcs=config.max_concurrent_rpcs,
        )
        """Where the caller registers its servicers before ``start``."""

    @property
    def port(self) -> int:
        """The bound port; 0 before ``start``."""
        return self._bound_port

    @property
    def address(self) -> str:
        """The bound ``host:port``, with the host as configured."""
        return join_address(split_address(self._config.listen)[0], self._bound_port)

    async def start(self) -> None:
        """Binds and answers; health says NOT_SERVING until ``set_serving``.

        Raises ``ConfigError`` when the address is taken, a certificate is bad, or plain text is not allowed there.
        """
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self.server)
        names = (*self._serving, health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self.server)
        await self._publish(("", *self._serving))
        self._bound_port = self._bind()
        await self.server.start()

    async def set_serving(self, serving: bool, service: str | None = None) -> None:
        """Health of one service, or of all. Overall health is SERVING while every service is.

        Once ``stop`` has begun nothing is SERVING any more, whoever says so.
        """
        if service is not None and service not in self._serving:
            raise ValueError(f"{service} is not one of this server's services {list(self._serving)}")
        if serving and self._stopping is not None:
            return
        names = list(self._serving) if service is None else [service]
        for name in names:
            self._serving[name] = serving
        await self._publish(("", *names))

    async def stop(self, drain: Callable[[], Awaitable[None]] | None = None) -> None:
        """NOT_SERVING, ``drain()`` for at most ``drain_timeout_s``, then stop. A second call waits for the first."""
        if self._stopping is None:
            self._stopping = asyncio.ensure_future(self._stop(drain))
        await asyncio.shield(self._stopping)

    def _bind(self) -> int:
        listen, tls = self._config.listen, self._config.tls
        if tls is None:
            check_plaintext(listen, self._config.allow_plaintext, "listen")
        credentials = None if tls is None else _credentials(tls)
        try:
            if credentials is None:
                port = self.server.add_insecure_port(listen)
            else:
                port = self.server.add_secure_port(listen, credentials)
        except RuntimeError as error:
            raise ConfigError(f"listen: cannot bind {listen} ({error}); is the port taken?") from None
        if port == 0:
            raise ConfigError(f"listen: cannot bind {listen}; is the port taken?")
        return port

    async def _publish(self, names: Sequence[str]) -> None:
        for name in names:
            serving = self._serving[name] if name else all(self._serving.values())
            status = health_pb2.HealthCheckResponse.SERVING if serving else health_pb2.HealthCheckResponse.NOT_SERVING
            try:
                async with asyncio.timeout(HEALTH_TIMEOUT_S):
                    await self._health.set(name, status)
            except TimeoutError:
                _log.warning("a health watcher does not read; its stream is behind", service=name or "overall")

    async def _stop(self, drain: Callable[[], Awaitable[None]] | None) -> None:
        await self.set_serving(False)
        if drain is not None and not await _bounded(drain(), self._config.drain_timeout_s, "drain"):
            _log.warning("drain timed out; calls left are cancelled", after_s=self._config.drain_timeout_s)
        if not await _bounded(self.server.stop(STOP_GRACE_S), STOP_GRACE_S + CANCEL_TIMEOUT_S, "stop"):
            _log.warning("calls ignore their cancellation; stopped all the same")


async def _bounded(work: Awaitable[None], timeout_s: float, name: str) -> bool:
    """Whether ``work`` ended in time, well or badly; it is not waited for after that, even if it refuses to end."""
    task = asyncio.ensure_future(work)
    ended, _ = await asyncio.wait({task}, timeout=timeout_s)
    if not ended:
        task.cancel()
        return False
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("a step of the stop failed; the next one follows", step=name, exc_info=error)
    return True


def check_plaintext(listen: str, allow_plaintext: bool, field: str) -> None:
    """Raises ``ConfigError`` when ``listen`` is not loopback and plain text was not asked for by name."""
    if not allow_plaintext and not is_loopback(split_address(listen)[0]):
        raise ConfigError(
            f"{field}: {listen} is not loopback and tls is not configured; "
            "configure tls, listen on 127.0.0.1, or set allow_plaintext: true"
        )


def _credentials(tls: TlsConfig) -> grpc.ServerCredentials:
    pair = (read_pem(tls.key_file, "tls.key_file"), read_pem(tls.cert_file, "tls.cert_file"))
    authority = read_pem(tls.ca_file, "tls.ca_file") if tls.ca_file else None
    return grpc.ssl_server_credentials([pair], authority, tls.require_client_cert)
