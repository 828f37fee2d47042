"""A router process of its own for a test: ``python -m services.router`` over any schedulers."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import grpc
from forerun.inference.v1 import service_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.support.redis_server import free_port

SERVICE = service_pb2.DESCRIPTOR.services_by_name["InferenceService"].full_name


class RouterProcess:
    """Started by ``start``; ``log`` is what it wrote. ``end`` kills what is left."""

    def __init__(self, folder: Path, replicas: dict[str, str], **config: Any) -> None:
        """``replicas``: id to address; ``config``: further fields of ``RouterConfig``. Without a tokenizer unless
        asked for."""
        self.address = f"127.0.0.1:{free_port()}"
        config["server"] = {"listen": self.address, **config.get("server", {})}
        config["replicas"] = [{"replica_id": name, "address": address} for name, address in replicas.items()]
        config.setdefault("tokenizer", False)
        self.http_address: str | None = config.get("http_listen")
        self._config_file = folder / f"router-{self.address.rpartition(':')[2]}.json"
        self._config_file.write_text(json.dumps(config))
        self._log_file = self._config_file.with_suffix(".log")
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> str:
        return self._log_file.read_text(errors="replace")

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def spawn(self) -> "RouterProcess":
        """Starts it and returns at once."""
        command = [sys.executable, "-m", "services.router", "--config", str(self._config_file)]
        with self._log_file.open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        return self

    def start(self, timeout_s: float = 30.0, service: str = SERVICE) -> "RouterProcess":
        """Returns when the health of ``service`` is SERVING; "" waits for the process only."""
        self.spawn()
        deadline = time.monotonic() + timeout_s
        while self.health(service) != "SERVING":
            assert self.process is not None
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.end()
                raise RuntimeError(f"the router did not start: {self.log[-4000:]}")
            time.sleep(0.05)
        return self

    def health(self, service: str = SERVICE) -> str:
        """The health status's name; empty when nobody answers."""
        with grpc.insecure_channel(self.address) as channel:
            request = health_pb2.HealthCheckRequest(service=service)
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
