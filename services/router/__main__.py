"""``python -m services.router --config FILE``: the public edge over any number of replicas."""

import asyncio
import os
import sys

from services.common.config_file import parse_service_args
from services.common.errors import ConfigError
from services.common.logs import setup_logging
from services.router.config import RouterConfig
from services.router.router import ExitCode, Router


def main() -> None:
    """Runs until told to stop and exits; see ``ExitCode``."""
    config = parse_service_args("python -m services.router", RouterConfig)
    setup_logging("router", config.telemetry)
    code = asyncio.run(_run(config))
    sys.stderr.flush()
    if config.tokenizer:
        # All is closed. Tearing the engine's libraries down takes seconds and prints their reports of leaks; and while
        # they are still being imported, Python could only wait for it.
        os._exit(code)
    sys.exit(code)


async def _run(config: RouterConfig) -> ExitCode:
    try:
        router = Router(config)
    except ConfigError as error:
        print(f"python -m services.router: {error}", file=sys.stderr)  # noqa: T201
        return ExitCode.BAD_CONFIG
    return await router.run()


if __name__ == "__main__":
    main()
