"""A scheduler process of its own for a test, with a fake or a real engine."""

from pathlib import Path
from typing import Any

from tests.support.free_ports import free_port
from tests.support.service_process import ServiceProcess


class SchedulerProcess(ServiceProcess):
    """With the fake engine unless asked otherwise."""

    name = "scheduler"

    def __init__(self, folder: Path, **config: Any) -> None:
        """``config``: fields of ``SchedulerConfig``; the listen address is chosen unless given."""
        address = config.get("server", {}).get("listen") or f"127.0.0.1:{free_port()}"
        config["server"] = {**config.get("server", {}), "listen": address}
        config.setdefault("engine", "fake")
        super().__init__(folder, address, config)
