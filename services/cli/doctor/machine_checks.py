"""This machine: engine, cores, memory, shared memory, open files, disk, GPUs."""

import os
import resource
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

import psutil

from services.cli.doctor.finding import Finding, failed, ok, warning
from services.cli.local_config import LocalConfig
from services.cli.up import engine_is_cuda
from services.common.version import FORERUN_VERSION, vllm_version

SHM = Path("/dev/shm")
LEAST_SHM_BYTES = 256 << 20
"""PyTorch and vLLM share tensors there between the ranks of a stage; Docker gives 64 MiB unless told otherwise."""
FEWEST_FILES = 4096
"""A router needs one for each connection and a replica one for each stream; common limits are 1,024."""
LEAST_DISK_BYTES = 1 << 30


def machine_checks(config: LocalConfig, model_bytes: int | None, traces: Path) -> Iterator[Finding]:
    """Args:
    config: what is to be started.
    model_bytes: of the model's weights; None: not known.
    traces: folder for traces and logs; need not be there.
    """
    yield check_engine(config)
    yield check_cores(config, os.sched_getaffinity(0))
    yield check_memory(config, model_bytes, psutil.virtual_memory().available)
    if any(replica.stage_processes for replica in config.replicas):
        yield check_shared_memory(SHM)
    yield check_open_files(resource.getrlimit(resource.RLIMIT_NOFILE))
    yield check_disk(traces)
    if engine_is_cuda() and any(replica.stage_processes for replica in config.replicas):
        yield check_gpus(config, _gpus)


def check_engine(config: LocalConfig) -> Finding:
    """The engine is there, in the version that Forerun is written against."""
    installed = vllm_version()
    if not any(replica.engine == "vllm" for replica in config.replicas):
        return ok("engine", f"forerun {FORERUN_VERSION}, fake engine")
    if not installed:
        return failed("engine", "vLLM is not installed", "make setup, or pip install forerun[cpu] or forerun[cuda]")
    wanted = _wanted_vllm()
    if wanted and installed != wanted:
        return failed(
            "engine",
            f"vLLM {installed}, Forerun {FORERUN_VERSION} is for {wanted}",
            f"install vLLM {wanted}: make setup",
        )
    return ok("engine", f"forerun {FORERUN_VERSION}, vLLM {installed}, {'CUDA' if engine_is_cuda() else 'CPU'}")


def check_cores(config: LocalConfig, cores: set[int]) -> Finding:
    """Every core that is named is there, and there is one for each stage process."""
    listed = {
        core
        for replica in config.replicas
        if isinstance(replica.cores, list)
        for each in replica.cores
        for core in each
    }
    if missing := sorted(listed - cores):
        return failed(
            "cores", f"core {missing[0]} is not among those of this process", "correct replicas.N.cores, or set auto"
        )
    processes = sum(replica.stage_processes for replica in config.replicas)
    if processes > len(cores) and not engine_is_cuda():
        return warning(
            "cores",
            f"{len(cores)} for {processes} stage processes, which will wait for each other",
            "fewer replicas, pipeline_stages or tensor_parallel",
        )
    return ok("cores", f"{len(cores)} for {processes} stage processes")


def check_memory(config: LocalConfig, model_bytes: int | None, available: int) -> Finding:
    """Weights and configured KV caches fit into what is free; on CPUs alone, since GPUs have their own memory."""
    found = f"{_gib(available)} free"
    replicas = [replica for replica in config.replicas if replica.stage_processes]
    if model_bytes is None or not replicas or engine_is_cuda():
        return ok("memory", found)
    caches = sum(int(each.engine_args.get("kv_cache_memory_bytes") or 0) * each.pipeline_stages for each in replicas)
    needed = model_bytes * len(replicas) + caches
    if needed > available:
        return failed(
            "memory",
            f"{found}, weights and KV caches need {_gib(needed)}",
            "fewer replicas, a smaller model, or a smaller engine_args.kv_cache_memory_bytes",
        )
    return ok("memory", f"{found}, weights and KV caches need {_gib(needed)}")


def check_shared_memory(folder: Path) -> Finding:
    """The ranks of a stage find room there."""
    if not folder.is_dir():
        return warning("shared memory", f"{folder} is not there", "mount a tmpfs at /dev/shm")
    free = psutil.disk_usage(str(folder)).free
    if free < LEAST_SHM_BYTES:
        return warning("shared memory", f"{free >> 20} MiB free", "docker run --shm-size=1g, or shm_size in compose")
    return ok("shared memory", f"{_gib(free)} free")


def check_open_files(limits: tuple[int, int]) -> Finding:
    """``limits``: soft and hard."""
    soft, hard = limits
    if soft != resource.RLIM_INFINITY and soft < FEWEST_FILES:
        return warning("open files", f"at most {soft:,}", f"ulimit -n {min(hard, 65_536) if hard > 0 else 65_536}")
    return ok("open files", "no limit" if soft == resource.RLIM_INFINITY else f"at most {soft:,}")


def check_disk(folder: Path) -> Finding:
    """Traces and logs have room, and may be written."""
    place = next(parent for parent in (folder.absolute(), *folder.absolute().parents) if parent.is_dir())
    if not os.access(place, os.W_OK):
        return failed("disk", f"{place} cannot be written", "choose another --run-dir, or give this user the right")
    free = psutil.disk_usage(str(place)).free
    if free < LEAST_DISK_BYTES:
        return warning("disk", f"{free >> 20} MiB free for traces and logs at {place}", "make room, or move --run-dir")
    return ok("disk", f"{_gib(free)} free at {place}")


def check_gpus(config: LocalConfig, count: Callable[[], int]) -> Finding:
    """``count``: of the devices that PyTorch sees."""
    wanted = sum(replica.stage_processes for replica in config.replicas if replica.devices != "cpu")
    listed = [index for replica in config.replicas if isinstance(replica.devices, list) for index in replica.devices]
    there = count()
    needed = max([index + 1 for index in listed], default=0) if listed else wanted
    if there < needed:
        return failed(
            "GPUs",
            f"PyTorch sees {there}, the file needs {needed}",
            "check nvidia-smi and CUDA_VISIBLE_DEVICES, or correct replicas.N.devices",
        )
    return ok("GPUs", f"{there} for {wanted} stage processes")


def _gpus() -> int:
    import torch  # noqa: PLC0415  (takes seconds, and only this needs it)

    return int(torch.cuda.device_count())


def _wanted_vllm() -> str:
    """As in this package's requirements; empty where they cannot be read."""
    try:
        required = requires("forerun") or []
        version("forerun")
    except PackageNotFoundError:
        return ""
    pins = [each.partition(";")[0].strip() for each in required if each.startswith("vllm")]
    return next((pin.partition("==")[2] for pin in pins if "==" in pin), "")


def _gib(count: int) -> str:
    return f"{count / 2**30:.1f} GiB"
