"""Which splits of a model ``forerun profile`` measures, and the system that each one is measured in."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.cli.errors import CliError
from services.common.errors import ConfigError
from services.common.even_shares import even_shares
from services.scheduler.sp_planner import shapes_of
from services.scheduler.sp_split import Split
from services.workers.draft_adapter.config import DraftAdapterConfig

BASE_FIELDS = ("start_timeout_s", "drain_timeout_s")
"""What a measured system takes over from a configuration file, beside the first replica."""


@dataclass(frozen=True, slots=True)
class Target:
    """The model, as far as splitting it goes."""

    layers: int
    attention_heads: int
    on_cuda: bool


@dataclass(frozen=True, slots=True)
class Adapter:
    """A draft adapter."""

    folder: Path
    config: DraftAdapterConfig

    def fits(self, layers: Sequence[int]) -> bool:
        """Whether the first of stages with so many layers can draft with it."""
        return layers[0] >= self.config.exit_layer


def read_adapters(folders: Iterable[Path]) -> list[Adapter]:
    """The adapters in ``folders``. Raises ``ConfigError``."""
    return [Adapter(folder, DraftAdapterConfig.read(folder)) for folder in folders]


def splits_to_measure(
    devices: int, target: Target, adapters: Sequence[Adapter], partitions: Sequence[tuple[int, ...]]
) -> list[Split]:
    """Every split of the devices that a replica can run, in the order of measuring.

    A replica micro-batches or speculates, never both; SP needs an adapter. On CUDA, TP needs attention heads that can
    be divided. PP and SP get the layers in ``partitions`` (SP those whose first stage reaches the adapter's exit), or
    else an even split and the adapter's own.

    Raises:
        CliError: a partition fits no split, or nothing can be measured.
    """
    _check_partitions(devices, target, partitions)
    splits: list[Split] = []
    for pp, tp, sp in sorted(shapes_of(devices), key=lambda shape: (shape[2], shape[0])):
        if pp * sp > target.layers or (target.on_cuda and target.attention_heads % tp):
            continue
        if sp > 1:
            if pp == 1 and (adapter := adapter_for(sp, adapters)) is not None:
                given = [layers for layers in partitions if len(layers) == sp and adapter.fits(layers)]
                splits += [Split(pp, tp, sp, layers) for layers in given or [tuple(adapter.config.layer_partition(sp))]]
        elif pp > 1:
            given = [layers for layers in partitions if len(layers) == pp] or [tuple(even_shares(target.layers, pp))]
            splits += [Split(pp, tp, layers=layers) for layers in given]
            splits.append(Split(pp, tp, layers=given[0], micro_batching=False))
        else:
            splits.append(Split(tp=tp))
    if not splits:
        raise CliError(f"--devices {devices}: no split of {target.layers} layers over so many; give fewer")
    return splits


def adapter_for(sp: int, adapters: Sequence[Adapter]) -> Adapter | None:
    """The one whose exit is nearest to an equal share of the layers, among those that leave enough of them."""
    fitting = [each for each in adapters if each.config.target_layers - each.config.exit_layer >= sp - 1]
    return min(fitting, key=lambda each: abs(each.config.exit_layer - each.config.target_layers / sp), default=None)


def system_for(
    split: Split, base: Mapping[str, Any], adapters: Sequence[Adapter], sequences: int, *, on_cuda: bool
) -> dict[str, Any]:
    """The configuration of a system whose only replica is split so and takes ``sequences`` at once.

    It runs every draft, so that all of them are judged. On a CPU the devices of a TP group are cores of one process,
    whose threads share each layer; so that every split has the same memory, it gets the KV memory of all of them.

    Args:
        split: what is measured.
        base: as ``LocalConfig`` reads it; its first replica's engine arguments and stage fields are kept.
        adapters: as for ``splits_to_measure``.
        sequences: the largest batch.
        on_cuda: whether each device is a process's own.
    """
    replica: dict[str, Any] = dict((base.get("replicas") or [{}])[0])
    arguments: dict[str, Any] = {"enable_prefix_caching": True, **replica.get("engine_args", {})}
    arguments["max_num_seqs"] = max(sequences, arguments.get("max_num_seqs", 0))
    if not on_cuda and "kv_cache_memory_bytes" in arguments:
        arguments["kv_cache_memory_bytes"] *= split.tp
    adapter = adapter_for(split.sp, adapters) if split.sp > 1 else None
    replica |= {
        "pipeline_stages": split.stages,
        "tensor_parallel": split.tp if on_cuda else 1,
        "layer_partition": list(split.layers),
        "micro_batching": split.micro_batching,
        "speculation": adapter
        and {"draft_adapter": str(adapter.folder.resolve()), "mode": "always", "drop_fraction": 0.0},
        "cores": "auto",
        "devices": "auto",
        "max_queued_requests": sequences,
        "engine_args": arguments,
    }
    return {
        **{name: base[name] for name in BASE_FIELDS if name in base},
        "model": base["model"],
        "router": {"server": {"listen": "127.0.0.1:0"}, "http_listen": None},
        "replicas": [replica],
        "redis": {"start": False},
        "telemetry": {"sample_ratio": 0.0, "log_level": "warning"},
    }


def _check_partitions(devices: int, target: Target, partitions: Sequence[tuple[int, ...]]) -> None:
    for layers in partitions:
        if devices % len(layers) or sum(layers) != target.layers or min(layers) < 1:
            raise CliError(
                f"--layers {','.join(map(str, layers))}: must name the layers of each stage, {target.layers} in all, "
                f"for a number of stages that divides {devices} devices"
            )


def check_adapters(adapters: Sequence[Adapter], hf_config: Any) -> None:
    """Raises ``ConfigError`` for one that was trained for another model."""
    for adapter in adapters:
        try:
            adapter.config.check_target(hf_config)
        except ConfigError as error:
            raise ConfigError(f"--adapter {adapter.folder}: {error}") from error
