"""The system that a grid asks: one replica of one stage with its experts, which records."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from services.cli.errors import CliError
from services.cli.up import engine_is_cuda
from services.common.expert import Expert

MAX_MODEL_LEN: Final = 4096
"""The longest prompt of the workloads and its answer fit."""


def grid_system(
    model: str, experts: Mapping[str, Any], concurrency: int, engine_args: Mapping[str, Any]
) -> dict[str, Any]:
    """A configuration for ``BackgroundSystem``, on free ports.

    Args:
        model: that engines can load.
        experts: as in the configuration of a replica.
        concurrency: requests at once.
        engine_args: vLLM's, in place of the defaults.
    """
    arguments = {
        "dtype": default_dtype(),
        "max_model_len": MAX_MODEL_LEN,
        "max_num_seqs": max(8, concurrency),
        "max_num_batched_tokens": 2048,
        "enable_prefix_caching": True,
        **({} if engine_is_cuda() else {"kv_cache_memory_bytes": 768 << 20, "block_size": 32}),
        **engine_args,
    }
    return {
        "model": model,
        "router": {"server": {"listen": "127.0.0.1:0"}, "http_listen": None},
        "replicas": [
            {
                "pipeline_stages": 1,
                "experts": dict(experts),
                "max_queued_requests": max(64, concurrency),
                "engine_args": arguments,
            }
        ],
        "redis": {"start": False},
        "telemetry": {"sample_ratio": 0.0, "log_level": "warning"},
    }


def experts_of(kind: str | None, drafter: str | None) -> dict[str, Any]:
    """The experts of a replica: n-gram lookup, and a neural drafter where one is given. Raises ``CliError``."""
    if (kind is None) != (drafter is None):
        raise CliError("--drafter-kind and --drafter go together; give both, or neither for n-grams alone")
    if kind is None or drafter is None:
        return {}
    if Path(drafter).is_dir():
        drafter = str(Path(drafter).resolve())
    return {"drafter": {"kind": Expert(kind).value, "model": drafter}}


def engine_arguments(given: Sequence[str]) -> dict[str, Any]:
    """``NAME=VALUE`` each, the value as in YAML. Raises ``CliError``."""
    # Here, not above: it takes long to import, which --help should not.
    from ruamel.yaml import YAML, YAMLError  # noqa: PLC0415

    found = {}
    for each in given:
        name, separator, value = each.partition("=")
        if not separator or not name:
            raise CliError(f"--engine-arg {each}: must be NAME=VALUE, as in dtype=bfloat16")
        try:
            found[name] = YAML(typ="safe", pure=True).load(value)
        except YAMLError as error:
            raise CliError(f"--engine-arg {each}: {value} is no YAML value") from error
    return found


def default_dtype() -> str:
    """The model's own on CUDA; on a CPU bfloat16 where it computes in it, since vLLM emulates it elsewhere, slowly."""
    if engine_is_cuda():
        return "auto"
    flags = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    return "bfloat16" if "avx512_bf16" in flags or "amx_bf16" in flags else "float32"
