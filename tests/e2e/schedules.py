"""What property tests of the real schedulers share: configurations without a model's weights, and random events."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from hypothesis import strategies as st
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.structured_output import StructuredOutputManager

MAX_REQUESTS = 8


class Configs(dict[int, Any]):
    """vLLM configurations by number of stages; building one costs seconds."""

    def __repr__(self) -> str:
        # vLLM's own configurations cannot all be printed, which hypothesis does when a test fails.
        return "Configs"


def stage_configs(model: Path, stages: Iterable[int], forerun: dict[str, Any], **engine_args: Any) -> Configs:
    """One configuration for each number of stages.

    Args:
        forerun: settings of the engine core beyond the necessary ones.
        engine_args: vLLM's, beyond the common ones.
    """
    settings = {"replica_id": "r", "generation": 1, "address": "127.0.0.1:1", "ledger": {}, "telemetry": {}}
    return Configs(
        (
            count,
            EngineArgs(
                model=str(model),
                pipeline_parallel_size=count,
                distributed_executor_backend="mp",
                max_num_seqs=MAX_REQUESTS,
                additional_config={"forerun": settings | forerun},
                **engine_args,
            ).create_engine_config(),
        )
        for count in stages
    )


def build_scheduler(scheduler: type[Any], config: Any, blocks: int) -> Any:
    """``scheduler`` over a KV pool of ``blocks`` blocks of one layer."""
    config.cache_config.num_gpu_blocks = blocks
    block_size = config.cache_config.block_size
    spec = FullAttentionSpec(block_size=block_size, num_kv_heads=1, head_size=8, dtype=torch.float32)
    return scheduler(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(blocks, [], [KVCacheGroupSpec(["layer"], spec)]),
        structured_output_manager=StructuredOutputManager(config),
        block_size=block_size,
        log_stats=False,
    )


def run_to_the_end(run: Any) -> None:
    """Turns of the engine's loop until every request has ended."""
    for _ in range(20_000):
        if run.is_idle:
            break
        run.turn()
    assert run.is_idle, "a request never ended"


def events(longest_prompt: int, most_tokens: int) -> st.SearchStrategy[list[tuple[str, int, int]]]:
    """Requests added (prompt and answer tokens), turns of the engine's loop, requests aborted (which)."""
    return st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.integers(1, longest_prompt), st.integers(1, most_tokens)),
            st.tuples(st.just("turn"), st.integers(1, MAX_REQUESTS), st.just(0)),
            st.tuples(st.just("abort"), st.integers(0, 30), st.just(0)),
        ),
        min_size=1,
        max_size=40,
    )
