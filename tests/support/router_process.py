"""A router process of its own for a test, over any schedulers."""

from pathlib import Path
from typing import Any

from forerun.inference.v1 import service_pb2

from tests.support.free_ports import free_port
from tests.support.service_process import ServiceProcess

SERVICE = service_pb2.DESCRIPTOR.services_by_name["InferenceService"].full_name


class RouterProcess(ServiceProcess):
    """Without a tokenizer unless asked for."""

    name = "router"
    health_service = SERVICE

    def __init__(self, folder: Path, replicas: dict[str, str], **config: Any) -> None:
        """``replicas``: id to address; ``config``: further fields of ``RouterConfig``."""
        address = f"127.0.0.1:{free_port()}"
        config["server"] = {"listen": address, **config.get("server", {})}
        config["replicas"] = [{"replica_id": name, "address": address} for name, address in replicas.items()]
        config.setdefault("tokenizer", False)
        self.http_address: str | None = config.get("http_listen")
        super().__init__(folder, address, config)
