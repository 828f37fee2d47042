"""``python -m services.scheduler --config FILE``: one replica's front and engine."""

import asyncio
import sys

from services.common.config_file import parse_service_args
from services.common.logs import setup_logging
from services.scheduler.config import SchedulerConfig
from services.scheduler.service import SchedulerService


def main() -> int:
    """Runs until told to stop; see ``ExitCode``."""
    config = parse_service_args("python -m services.scheduler", SchedulerConfig)
    setup_logging("scheduler", config.telemetry)
    return asyncio.run(_run(config))


async def _run(config: SchedulerConfig) -> int:
    return await SchedulerService(config).run()


# vLLM spawns its engine core by importing this module again under another name.
if __name__ == "__main__":
    sys.exit(main())
