"""``python -m services.predictor --config FILE``: the remaining-length sidecar."""

import asyncio
import sys

from services.common.config_file import parse_service_args
from services.common.errors import ConfigError
from services.common.logs import setup_logging
from services.predictor.config import PredictorConfig
from services.predictor.serve import serve


def main() -> int:
    """Runs until told to stop. 2: the configuration cannot work."""
    config = parse_service_args("python -m services.predictor", PredictorConfig)
    setup_logging("predictor", config.telemetry)
    try:
        asyncio.run(serve(config))
    except ConfigError as error:
        print(f"python -m services.predictor: {error}", file=sys.stderr)  # noqa: T201
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
