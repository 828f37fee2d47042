"""vLLM's worker set-up, answered for a device that is not there.

Relies on (vLLM 0.32): the engine core asks the methods of ``convert.WORKER_METHODS`` in its own order and sizes the
pool of KV blocks from the specs and the memory that they return.
"""

from collections.abc import Callable
from typing import Any

from vllm.config import VllmConfig
from vllm.v1.attention.backends.utils import get_supported_kv_cache_layouts
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheSpec
from vllm.v1.worker.worker_base import CompilationTimes

from services.common.errors import ConfigError
from services.workers.kv_books import KvBooks
from services.workers.place import StagePlace


class SyntheticWorker:
    """As a worker of this stage's layers would answer; of the pool it only keeps books."""

    def __init__(self, config: VllmConfig, place: StagePlace) -> None:
        """Raises ``ConfigError`` when the KV cache has no size."""
        if config.cache_config.kv_cache_memory_bytes is None:
            raise ConfigError("kv_cache_memory_bytes: must be set, since a synthetic device has no memory to measure")
        self._config = config
        # As vLLM's own workers set it; the stage's layers are found by it.
        config.parallel_config.rank = place.rank
        self.books: KvBooks | None = None
        """Made by ``initialize_from_config``."""
        self._methods: dict[str, Callable[..., Any]] = {
            "get_kv_cache_spec": self._kv_cache_spec,
            "get_supported_kv_cache_layouts": lambda: [layout.name for layout in get_supported_kv_cache_layouts(())],
            "set_kv_cache_layout": lambda _layout: None,
            "determine_available_memory": lambda: config.cache_config.kv_cache_memory_bytes,
            "initialize_from_config": self._make_books,
            "compile_or_warm_up_model": lambda: CompilationTimes(0.0, 0.0),
            "get_supported_tasks": lambda: ("generate",),
            "update_max_model_len": lambda _length: None,
            "reset_mm_cache": lambda: None,
            "reset_encoder_cache": lambda: None,
            "supports_draft_weight_updates": lambda: False,
        }

    def call(self, method: str, arguments: list[Any]) -> Any:
        """One of vLLM's worker methods."""
        return self._methods[method](*arguments)

    def _kv_cache_spec(self) -> dict[str, KVCacheSpec]:
        model, parallel = self._config.model_config, self._config.parallel_config
        first, last = model.get_layers_start_end_indices(parallel)
        spec = FullAttentionSpec(
            block_size=self._config.cache_config.block_size,
            num_kv_heads=model.get_num_kv_heads(parallel),
            head_size=model.get_head_size(),
            dtype=model.dtype,
        )
        return {f"model.layers.{layer}.self_attn.attn": spec for layer in range(first, last)}

    def _make_books(self, config: KVCacheConfig) -> None:
        self.books = KvBooks(config.num_blocks, config.kv_cache_groups[0].kv_cache_spec.block_size)
