"""A scheduler process of its own for a test: ``python -m services.scheduler`` with a fake or a real engine."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.support.redis_server import free_port


class SchedulerProcess:
    """Started by ``start``; ``log`` is what it wrote. ``end`` kills what is left."""

    def __init__(self, folder: Path, **config: Any) -> None:
        """``config``: fields of ``SchedulerConfig``; the listen address is chosen unless given."""
        self.address = config.get("server", {}).get("listen") or f"127.0.0.1:{free_port()}"
        config["server"] = {**config.get("server", {}), "listen": self.address}
        config.setdefault("engine", "fake")
        self._folder = folder
        self._config_file = folder / f"scheduler-{self.address.rpartition(':')[2]}.json"
        self.config_text = json.dumps(config)
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

    def spawn(self) -> None:
        """Starts it and returns at once."""
        command = [sys.executable, "-m", "services.scheduler", "--config", str(self._config_file)]
        with self._log_file.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)

    def start(self, timeout_s: float = 30.0) -> "SchedulerProcess":
        """Returns when its health is SERVING."""
        self.spawn()
        deadline = time.monotonic() + timeout_s
        while not self.is_serving():
            assert self.process is not None
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.end()
                raise RuntimeError(f"the scheduler did not start: {self.log[-4000:]}")
            time.sleep(0.05)
        return self

    def health(self) -> str:
        """The health status's name; empty when nobody answers."""
        with grpc.insecure_channel(self.address) as channel:
            try:
                answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=1)
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
                self.process.wait(5)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait(5)
