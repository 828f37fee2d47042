"""Metrics are served from a thread, for several registries, and a taken port is a configuration error."""

import socket
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest
from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.parser import text_string_to_metric_families

from services.common.errors import ConfigError
from services.common.metrics import SECONDS_BUCKETS, MetricsServer, ServiceMetrics
from services.common.outcome import Outcome
from services.common.version import FORERUN_VERSION


def scrape(server: MetricsServer) -> dict[str, float]:
    """Samples as ``name{label=value,...}`` to value."""
    with urllib.request.urlopen(f"http://{server.address}/metrics", timeout=5) as response:
        text = response.read().decode()
    samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            samples[f"{sample.name}{{{labels}}}"] = sample.value
    return samples


def test_every_service_has_build_info_and_all_outcomes() -> None:
    metrics = ServiceMetrics("router")
    metrics.count_request(Outcome.STOP)
    server = MetricsServer("127.0.0.1:0", [metrics.registry])
    server.start()
    try:
        samples = scrape(server)
    finally:
        server.stop()
    (build,) = [name for name in samples if name.startswith("forerun_build_info")]
    assert f"version={FORERUN_VERSION}" in build
    assert "service=router" in build
    outcomes = {name: value for name, value in samples.items() if name.startswith("forerun_requests_total")}
    assert len(outcomes) == len(Outcome)
    assert outcomes["forerun_requests_total{outcome=stop}"] == 1
    assert outcomes["forerun_requests_total{outcome=rejected-overload}"] == 0
    assert "process_resident_memory_bytes{}" in samples


def test_several_registries_are_served_at_once_and_late_metrics_appear() -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    Counter("vllm:prompt_tokens", "Tokens.", registry=theirs).inc(7)
    server = MetricsServer("127.0.0.1:0", [ours, theirs])
    server.start()
    try:
        Histogram("late_seconds", "Late.", registry=ours, buckets=SECONDS_BUCKETS).observe(0.02)
        samples = scrape(server)
    finally:
        server.stop()
    assert samples["vllm:prompt_tokens_total{}"] == 7
    assert samples["late_seconds_bucket{le=0.025}"] == 1


def test_two_services_share_a_process_without_clashing() -> None:
    assert ServiceMetrics("router").registry is not ServiceMetrics("scheduler").registry


def test_buckets_are_in_order() -> None:
    assert list(SECONDS_BUCKETS) == sorted(set(SECONDS_BUCKETS))


def test_a_taken_port_is_a_configuration_error() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        server = MetricsServer(f"127.0.0.1:{other.getsockname()[1]}", [])
        with pytest.raises(ConfigError, match=r"metrics_listen: cannot bind 127\.0\.0\.1:\d+: Address already in use"):
            server.start()
    server.stop()


def test_addresses_beyond_loopback_must_be_asked_for_by_name() -> None:
    with pytest.raises(ConfigError, match=r"metrics_listen: 0\.0\.0\.0:0 is not loopback.*allow_plaintext: true"):
        MetricsServer("0.0.0.0:0", []).start()
    server = MetricsServer("0.0.0.0:0", [], allow_plaintext=True)
    server.start()
    assert server.port > 0
    server.stop()


def test_ipv6() -> None:
    server = MetricsServer("[::1]:0", [CollectorRegistry()])
    server.start()
    assert scrape(server) == {}
    server.stop()


def test_stop_frees_the_port_and_may_be_called_twice() -> None:
    server = MetricsServer("127.0.0.1:0", [])
    server.start()
    address = server.address
    server.stop()
    server.stop()
    again = MetricsServer(address, [])
    again.start()
    again.stop()


def test_a_scraper_that_says_nothing_keeps_nobody_waiting() -> None:
    server = MetricsServer("127.0.0.1:0", [ServiceMetrics("router").registry])
    server.start()
    try:
        with socket.create_connection(("127.0.0.1", server.port)) as silent:
            silent.sendall(b"GET /met")
            started = time.monotonic()
            with ThreadPoolExecutor(4) as pool:
                assert all(pool.map(lambda _: scrape(server), range(8)))
            assert time.monotonic() - started < 4
    finally:
        started = time.monotonic()
        server.stop()
        assert time.monotonic() - started < 2
