"""``python -m services.workers --config FILE``: one stage worker process.

The order of the first lines matters: the cores, the number of compute threads and the CUDA device must be set
before torch is imported, so this module imports nothing that does until ``_claim_device`` has run.
"""

import asyncio
import os
import sys

from services.common.config_file import parse_service_args
from services.workers.config import StageConfig


def main() -> None:
    """Parse, claim the device, serve until the scheduler leaves or a signal comes."""
    config = parse_service_args("python -m services.workers", StageConfig)
    _claim_device(config)
    from services.workers.serve import serve  # noqa: PLC0415  imports torch and vLLM

    code = asyncio.run(serve(config))
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit, which would wait for the model thread: it may sit in a step or a rendezvous that never ends, and
    # everything worth flushing has been.
    os._exit(code)


def _claim_device(config: StageConfig) -> None:
    if config.cores is not None:
        os.sched_setaffinity(0, config.cores)
    threads = str(len(os.sched_getaffinity(0)))
    # One OpenMP thread a core; a thread team that spins between steps would steal the core from its neighbours.
    os.environ.setdefault("OMP_NUM_THREADS", threads)
    os.environ.setdefault("MKL_NUM_THREADS", threads)
    if config.device is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = str(config.device)
    if config.cache_dir is not None:
        os.environ["VLLM_CACHE_ROOT"] = str(config.cache_dir)


if __name__ == "__main__":
    main()
