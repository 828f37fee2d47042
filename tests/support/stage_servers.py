"""Several stage workers in one process of their own, which imports the engine once; otherwise as each is started."""

import asyncio
import multiprocessing
from typing import Any

from services.workers.config import StageConfig
from services.workers.serve import serve
from tests.support.free_ports import free_port


class StageServers:
    """One stage for each section of ``StageConfig`` fields, each on a port of its own."""

    def __init__(self, sections: list[dict[str, Any]]) -> None:
        self.addresses = [f"127.0.0.1:{free_port()}" for _ in sections]
        configs = [
            StageConfig.model_validate({**section, "server": {"listen": address}})
            for section, address in zip(sections, self.addresses, strict=True)
        ]
        self._process = multiprocessing.get_context("spawn").Process(target=_serve_all, args=(configs,), daemon=True)
        self._process.start()

    def wait(self, timeout_s: float) -> int | None:
        """The exit code once every stage has left; None when that takes longer."""
        self._process.join(timeout_s)
        return self._process.exitcode

    def end(self) -> None:
        """Kills what is left."""
        self._process.kill()
        self._process.join()


def _serve_all(configs: list[StageConfig]) -> None:
    asyncio.run(_all(configs))


async def _all(configs: list[StageConfig]) -> None:
    await asyncio.gather(*(serve(config) for config in configs))
