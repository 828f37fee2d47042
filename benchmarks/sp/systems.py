"""The systems that are compared, each behind the same small face: a batch in, its answers and drafts out.

A system that is not asked uses no processor time: Forerun's stages wait for the next plan, plain vLLM is frozen.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from benchmarks.forerun_run import decode_throughput, generate, scrape
from benchmarks.plain_vllm import Answer, PlainVllm
from benchmarks.systems import STOCK_PIPELINE, THREADS_OF_BOTH_CORES, engine_args, forerun_config
from services.cli.background import BackgroundSystem
from services.cli.units import UnitKind
from services.client.client import ForerunClient
from services.common.errors import ConfigError
from services.workers.draft_adapter.config import DraftAdapterConfig

STAGES = 2
STAGE_KV_BYTES = 256 << 20
"""Of each stage; one process has as much as both. Holds the largest batch, so that all systems decode the same one."""

_DRAFTED, _ACCEPTED = "forerun_sp_drafted_tokens_total", "forerun_sp_accepted_tokens_total"


@dataclass(frozen=True)
class Run:
    """What one system made of one batch."""

    answers: list[Answer]
    drafted: float = 0.0
    """Drafts that ran ahead and were judged."""
    accepted: float = 0.0
    """Those that were right."""

    @property
    def tokens_per_s(self) -> float:
        """While all requests decode."""
        return decode_throughput(self.answers)


class System(Protocol):
    """An asynchronous context manager that serves batches while it is entered."""

    async def run(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> Run:
        """Greedy answers of exactly ``max_tokens`` tokens to all prompts at once."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class ForerunSystem:
    """A whole Forerun, driven as a client would."""

    client: ForerunClient

    def __init__(self, config: Mapping[str, Any]) -> None:
        """``config`` as ``forerun up`` reads it."""
        self.background = BackgroundSystem(config)
        self._stack = AsyncExitStack()
        self._core_pages: list[str] = []

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self.background.start)
        self._stack.push_async_callback(asyncio.to_thread, self.background.stop)
        self.client = await self._stack.enter_async_context(ForerunClient(self.background.state.router_grpc))
        # A scheduler's pages are its own and its engine core's.
        self._core_pages = [unit.metrics[-1][1] for unit in self.background.units(UnitKind.SCHEDULER)]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def run(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> Run:
        """See ``System``."""
        before = await self._drafts()
        answers = await generate(self.client, prompts, max_tokens)
        after = await self._drafts()
        return Run(answers, *(after.get(name, 0.0) - before.get(name, 0.0) for name in (_DRAFTED, _ACCEPTED)))

    async def _drafts(self) -> dict[str, float]:
        return await asyncio.to_thread(scrape, self._core_pages, "forerun_sp_")


class VllmSystem:
    """Plain vLLM without any service around it."""

    def __init__(self, engine: Mapping[str, Any], environment: Mapping[str, str]) -> None:
        self._plain = PlainVllm(engine, environment, [0, 1])

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self._plain.__enter__)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self._plain.__exit__, kind, error, trace)

    async def run(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> Run:
        """See ``System``."""
        return Run(await asyncio.to_thread(self._plain.generate, prompts, max_tokens))


@dataclass(frozen=True)
class Conditions:
    """What all systems have in common, and how each is made."""

    model: Path
    dtype: str
    max_num_seqs: int = 32
    eager: bool = False
    """Not compiled, stock vLLM's pipeline excepted."""

    def micro_batches(self, layers: list[int]) -> ForerunSystem:
        """Our pipeline; each stage works on another part of the batch."""
        return ForerunSystem(self._config(layer_partition=layers))

    def whole_batch(self, layers: list[int]) -> ForerunSystem:
        """Our pipeline; the stages take turns with the whole batch."""
        return ForerunSystem(self._config(layer_partition=layers, micro_batching=False))

    def speculation(self, adapter: Path, drop_fraction: float | str, **replica: Any) -> ForerunSystem:
        """Our pipeline running ahead on drafts, always. ``replica``: further options of the replica."""
        speculation = {"draft_adapter": str(adapter.resolve()), "mode": "always", "drop_fraction": drop_fraction}
        return ForerunSystem(self._config(speculation=speculation, **replica))

    def stock_pipeline(self) -> VllmSystem:
        """vLLM's own pipeline parallelism, compiled always."""
        engine = engine_args(
            self.model,
            self.dtype,
            **self._engine(STAGE_KV_BYTES),
            pipeline_parallel_size=STAGES,
            distributed_executor_backend="mp",
        )
        # Eager it does not run on a CPU.
        engine["enforce_eager"] = False
        return VllmSystem(engine, STOCK_PIPELINE)

    def one_process(self) -> VllmSystem:
        """vLLM inside one process on both cores."""
        engine = engine_args(self.model, self.dtype, **self._engine(STAGES * STAGE_KV_BYTES))
        return VllmSystem(engine, THREADS_OF_BOTH_CORES)

    def _config(self, **replica: Any) -> dict[str, Any]:
        config = forerun_config(self.model, STAGES, self.dtype, **self._engine(STAGE_KV_BYTES))
        config["replicas"][0] |= replica
        return config

    def _engine(self, kv_bytes: int) -> dict[str, Any]:
        return {
            "max_model_len": 2048,
            "max_num_seqs": self.max_num_seqs,
            "kv_cache_memory_bytes": kv_bytes,
            "enable_prefix_caching": True,
            "enforce_eager": self.eager,
        }


def read_adapter(folder: Path) -> DraftAdapterConfig:
    """Raises ``ConfigError`` that says how to get an adapter, where there is none."""
    try:
        return DraftAdapterConfig.read(folder)
    except ConfigError as error:
        raise ConfigError(
            f"--adapter: {error}; to make one: forerun train adapter --model smollm2-135m --exit-layer 15 "
            "--out models/smollm2-135m"
        ) from error
