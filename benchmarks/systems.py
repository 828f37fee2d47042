"""The configurations that the benchmarks compare, so that each pair differs in nothing but what is compared."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from services.cli.model_resolve import resolve_model
from services.cli.model_store import ModelStore
from services.cli.paths import cache_dir

THREADS_OF_BOTH_CORES: Mapping[str, str] = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_USE_V2_MODEL_RUNNER": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "2",
}
"""Plain vLLM inside one process on two cores."""

STOCK_PIPELINE: Mapping[str, str] = {
    **THREADS_OF_BOTH_CORES,
    "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "0|1",
}
"""Stock vLLM with two pipeline stages, one core each."""


def model_folder(model: str) -> Path:
    """Where the checkpoint of a name that the model store knows, or of a path, lies."""
    return Path(resolve_model(model, ModelStore(cache_dir()), lambda _: None))


def fast_dtype() -> str:
    """bfloat16 where the processor computes in it; elsewhere vLLM emulates it, several times slower than float32."""
    flags = Path("/proc/cpuinfo").read_text()
    return "bfloat16" if "avx512_bf16" in flags or "amx_bf16" in flags else "float32"


def engine_args(model: Path, dtype: str = "bfloat16", **more: Any) -> dict[str, Any]:
    """vLLM engine arguments that all sides share."""
    return {
        "model": str(model),
        "dtype": dtype,
        "enforce_eager": True,
        "max_model_len": 8192,
        "max_num_seqs": 64,
        "max_num_batched_tokens": 2048,
        "kv_cache_memory_bytes": 768 << 20,
        "gpu_memory_utilization": 0.1,
        **more,
    }


def forerun_config(
    model: Path, stages: int, dtype: str = "bfloat16", layer_partition: list[int] | None = None, **more: Any
) -> dict[str, Any]:
    """A local configuration of one replica with the same engine arguments, on free ports."""
    arguments = {key: value for key, value in engine_args(model, dtype, **more).items() if key != "model"}
    return {
        "model": str(model),
        "router": {"server": {"listen": "127.0.0.1:0"}, "http_listen": None},
        "replicas": [
            {
                "pipeline_stages": stages,
                "engine_args": arguments,
                "layer_partition": layer_partition or [],
                "max_queued_requests": 256,
            }
        ],
        "telemetry": {"sample_ratio": 0.0, "log_level": "warning"},
    }
