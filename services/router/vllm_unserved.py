"""The part of vLLM's ``EngineClient`` that acts on one engine: not available through a router, and says so with 501."""

from typing import Any, NoReturn

from vllm.engine.protocol import EngineClient


class UnservedEngineMethods(EngineClient):
    """``NotImplementedError`` becomes 501 in vLLM's app; questions with an obvious answer get it."""

    def encode(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        _not_served("pooling and embeddings")

    async def abort(self, *_args: Any, **_kwargs: Any) -> None:
        _not_served("abort by id; close the connection instead")

    async def start_profile(self, *_args: Any, **_kwargs: Any) -> None:
        _not_served("profiling")

    async def stop_profile(self) -> None:
        _not_served("profiling")

    async def reset_encoder_cache(self) -> None:
        _not_served("resetting a replica's encoder cache")

    async def reset_prefix_cache(self, *_args: Any, **_kwargs: Any) -> bool:
        _not_served("resetting a replica's prefix cache")

    async def sleep(self, *_args: Any, **_kwargs: Any) -> None:
        _not_served("sleep mode")

    async def release_kv_cache_memory(self) -> None:
        _not_served("sleep mode")

    async def wake_up(self, *_args: Any, **_kwargs: Any) -> bool:
        _not_served("sleep mode")

    async def add_lora(self, *_args: Any, **_kwargs: Any) -> bool:
        _not_served("LoRA adapters")

    async def pause_generation(self, **_kwargs: Any) -> None:
        _not_served("pausing")

    async def resume_generation(self) -> None:
        _not_served("pausing")

    async def is_sleeping(self) -> bool:
        return False

    async def is_paused(self) -> bool:
        return False

    async def reset_mm_cache(self) -> None:
        """Text only: there is none."""

    async def notify_kv_transfer_request_rejected(self, *_args: Any, **_kwargs: Any) -> None:
        """No KV transfer: nothing is pinned."""

    def shutdown(self, timeout: float | None = None) -> None:
        """The router closes what it opened."""


def _not_served(what: str) -> NoReturn:
    raise NotImplementedError(f"{what}: not available through a router")
