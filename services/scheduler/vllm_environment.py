"""The environment that vLLM reads when it is imported; the one place of this service that touches it."""

import os

_REQUIRED = {
    # One stage runner serves CPU and CUDA; without Triton (CPU) vLLM has the V1 runner only.
    "VLLM_USE_V2_MODEL_RUNNER": "0",
    # gRPC does not survive fork.
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    "VLLM_NO_USAGE_STATS": "1",
}


def prepare_environment() -> None:
    """Call before vLLM is imported; child processes inherit it. ``HF_HUB_OFFLINE`` and the like stay as they are."""
    os.environ.update(_REQUIRED)
