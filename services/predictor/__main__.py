"""``python -m services.predictor --config FILE``: the remaining-length sidecar.

NumPy reads the number of its threads when it is imported, so nothing here imports it before that is set.
"""

import asyncio
import os
import sys

from services.common.config_file import parse_service_args
from services.common.errors import ConfigError
from services.common.logs import setup_logging
from services.predictor.config import PredictorConfig


def main() -> int:
    """Runs until told to stop. 2: the configuration cannot work."""
    config = parse_service_args("python -m services.predictor", PredictorConfig)
    setup_logging("predictor", config.telemetry)
    # A batch takes one core about a millisecond; more threads would only be in the way of the model beside it.
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(variable, "1")
    from services.predictor.serve import serve  # noqa: PLC0415  imports NumPy

    try:
        asyncio.run(serve(config))
    except ConfigError as error:
        print(f"python -m services.predictor: {error}", file=sys.stderr)  # noqa: T201
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
