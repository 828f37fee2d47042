"""``forerun health`` against a real server, as a container's health check runs it."""

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import HealthServicer

from services.cli.certificate_authority import CertificateAuthority
from tests.support.free_ports import free_port

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> CertificateAuthority:
    return CertificateAuthority.create(tmp_path_factory.mktemp("certs"))


@pytest.fixture(scope="module")
def server(authority: CertificateAuthority) -> Iterator[tuple[str, str]]:
    """Two doors to one server: plain text, and TLS with client certificates."""
    pair, health = authority.issue("forerun"), HealthServicer()
    health.set("", SERVING)
    health.set("sleepy", NOT_SERVING)
    server = grpc.server(ThreadPoolExecutor(2))
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    plain = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    credentials = grpc.ssl_server_credentials(
        [(pair.key_file.read_bytes(), pair.cert_file.read_bytes())], authority.ca_file.read_bytes(), True
    )
    tls = f"127.0.0.1:{server.add_secure_port('127.0.0.1:0', credentials)}"
    server.start()
    yield plain, tls
    server.stop(None)


def ask(*arguments: str | Path) -> tuple[int, str]:
    command = [sys.executable, "-m", "services.cli", "health", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return done.returncode, (done.stdout + done.stderr).strip()


def test_a_server_that_serves(server: tuple[str, str]) -> None:
    assert ask(server[0]) == (0, "SERVING")


def test_a_service_that_does_not(server: tuple[str, str]) -> None:
    assert ask(server[0], "--service", "sleepy") == (1, "NOT_SERVING")
    assert ask(server[0], "--service", "unheard-of") == (1, "NOT_FOUND")


def test_mutual_tls(server: tuple[str, str], authority: CertificateAuthority) -> None:
    pair = authority.issue("client")
    files = ["--ca-file", authority.ca_file, "--cert-file", pair.cert_file, "--key-file", pair.key_file]
    assert ask(server[1], *files) == (0, "SERVING")
    assert ask(server[1], *files[:2])[0] == 1
    assert ask(server[1])[0] == 1


def test_nobody_there() -> None:
    assert ask(f"127.0.0.1:{free_port()}") in ((1, "UNAVAILABLE"), (1, "DEADLINE_EXCEEDED"))


def test_what_is_no_address() -> None:
    code, said = ask("nonsense")
    assert code == 2
    assert "HOST:PORT" in said
