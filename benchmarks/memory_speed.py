"""How fast this machine reads memory at the moment: shared machines differ by half from hour to hour, and whether two
pipeline stages at once gain anything depends on what one core leaves to the other."""

import os
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

BYTES = 96 << 20
"""Of each core's array: more than caches hold."""
SECONDS = 0.3


def memory_gb_per_s() -> dict[str, float]:
    """Gigabytes read per second by one core alone and by all cores together."""
    cores = len(os.sched_getaffinity(0))
    return {"one_core": round(_read(1), 1), "all_cores": round(_read(cores), 1)}


def _read(threads: int) -> float:
    arrays = [np.ones(BYTES // 8) for _ in range(threads)]
    with ThreadPoolExecutor(threads) as pool:
        begin = time.perf_counter()
        passes = sum(pool.map(_read_for, arrays))
        return passes * BYTES / (time.perf_counter() - begin) / 1e9


def _read_for(array: np.ndarray) -> int:
    end, passes = time.perf_counter() + SECONDS, 0
    while time.perf_counter() < end:
        array.sum()
        passes += 1
    return passes
