"""A service in a process of its own for a test: ``python -m services.NAME --config FILE``."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Self

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc


class ServiceProcess:
    """Started by ``start``; ``log`` is what it wrote. ``end`` kills what is left."""

    name: str
    """Of the service's folder."""
    health_service = ""
    """Whose health ``start`` waits for; empty: the process's overall health."""

    def __init__(self, folder: Path, address: str, config: dict[str, Any]) -> None:
        self.address = address
        self.config_text = json.dumps(config)
        self._config_file = folder / f"{self.name}-{address.rpartition(':')[2]}.json"
        self._config_file.write_text(self.config_text)
        self._log_file = self._config_file.with_suffix(".log")
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> str:
        return self._log_file.read_text(errors="replace")

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def spawn(self) -> Self:
        """Starts it and returns at once."""
        command = [sys.executable, "-m", f"services.{self.name}", "--config", str(self._config_file)]
        with self._log_file.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        return self

    def start(self, timeout_s: float = 30.0, service: str | None = None) -> Self:
        """Returns when the health of ``service`` (default: ``health_service``) is SERVING."""
        self.spawn()
        deadline = time.monotonic() + timeout_s
        while self.health(service) != "SERVING":
            assert self.process is not None
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.end()
                raise RuntimeError(f"the {self.name} did not start: {self.log[-4000:]}")
            time.sleep(0.05)
        return self

    def health(self, service: str | None = None) -> str:
        """The health status's name; empty when nobody answers."""
        request = health_pb2.HealthCheckRequest(service=self.health_service if service is None else service)
        with grpc.insecure_channel(self.address) as channel:
            try:
                answer = health_pb2_grpc.HealthStub(channel).Check(request, timeout=1)
            except grpc.RpcError:
                return ""
        return health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)

    def is_serving(self) -> bool:
        return self.health() == "SERVING"

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def wait(self, timeout_s: float) -> int:
        """The exit code."""
        assert self.process is not None
        return self.process.wait(timeout_s)

    def end(self) -> None:
        """Kills what is left. Idempotent."""
        if self.process is None:
            return
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait(5)
