"""Prometheus: the exposition server and the few metrics that every service has. No global registry of our own."""

import threading
from collections.abc import Iterable, Sequence
from socket import AF_INET, AF_INET6
from socketserver import TCPServer, ThreadingMixIn
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import CollectorRegistry, Counter, Gauge, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.exposition import make_wsgi_app
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from services.common.address import is_loopback, join_address, split_address
from services.common.errors import ConfigError
from services.common.outcome import Outcome
from services.common.version import FORERUN_VERSION, vllm_version

SECONDS_BUCKETS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0,
)  # fmt: skip
"""Buckets of latency histograms, in seconds: from one step of a small model to a long answer."""

SCRAPE_TIMEOUT_S = 10.0
"""A scraper that stops reading or writing loses its connection after this long."""


class ServiceMetrics:
    """The metrics that every service has, in one registry that the service adds its own to."""

    def __init__(self, service: str) -> None:
        self.registry = CollectorRegistry()
        """Pass it to the constructors of further metrics and to ``MetricsServer``."""
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        build = Gauge(
            "forerun_build_info", "Always 1; versions in the labels.", ["service", "version", "vllm_version"],
            registry=self.registry,
        )  # fmt: skip
        build.labels(service, FORERUN_VERSION, vllm_version()).set(1)
        self.requests = Counter(
            "forerun_requests_total", "Requests ended, by outcome.", ["outcome"], registry=self.registry
        )
        # All outcomes exist from the start, so that a rate over the first of a kind is not lost.
        for outcome in Outcome:
            self.requests.labels(outcome.value)

    def count_request(self, outcome: Outcome) -> None:
        """Counts one ended request."""
        self.requests.labels(outcome.value).inc()


class MetricsServer:
    """Serves ``/metrics`` over HTTP from a thread, for several registries at once.

    vLLM registers its ``vllm:*`` metrics in ``prometheus_client.REGISTRY``: pass that one too where it runs.
    """

    def __init__(self, listen: str, registries: Sequence[CollectorRegistry], *, allow_plaintext: bool = False) -> None:
        self._listen = listen
        self._allow_plaintext = allow_plaintext
        self._registry = CollectorRegistry()
        self._registry.register(_Joined(registries))
        self._server: WSGIServer | None = None
        self._thread: threading.Thread | None = None

    @property
    def port(self) -> int:
        """The bound port; 0 before ``start``."""
        return self._server.server_port if self._server else 0

    @property
    def address(self) -> str:
        """The bound ``host:port``, with the host as configured."""
        return join_address(split_address(self._listen)[0], self.port)

    def start(self) -> None:
        """Binds and serves. Raises ``ConfigError`` when the address is taken or plain text is not allowed there."""
        host, port = split_address(self._listen)
        if not is_loopback(host) and not self._allow_plaintext:
            raise ConfigError(
                f"metrics_listen: {self._listen} is not loopback and metrics are plain HTTP; "
                "listen on 127.0.0.1, or set allow_plaintext: true"
            )
        try:
            self._server = _Server(host, port)
        except OSError as error:
            raise ConfigError(f"metrics_listen: cannot bind {self._listen}: {error.strerror}") from None
        self._server.set_app(make_wsgi_app(self._registry))
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Closes the port. Idempotent."""
        server, self._server = self._server, None
        if server is not None and self._thread is not None:
            server.shutdown()
            server.server_close()
            self._thread.join(SCRAPE_TIMEOUT_S)


class _Joined(Collector):
    def __init__(self, registries: Sequence[CollectorRegistry]) -> None:
        self._registries = registries

    def collect(self) -> Iterable[Metric]:
        for registry in self._registries:
            yield from registry.collect()

    def describe(self) -> Iterable[Metric]:
        """Names are not known before metrics are registered; nothing to check for clashes."""
        return ()


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def __init__(self, host: str, port: int) -> None:
        self.address_family = AF_INET6 if ":" in host else AF_INET
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        """Without the parent's look-up of the host's full name, which may take seconds and serves nothing."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()


class _Handler(WSGIRequestHandler):
    timeout = SCRAPE_TIMEOUT_S

    def log_message(self, format: str, *args: object) -> None:
        """Scrapes are not news."""
