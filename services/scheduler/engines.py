"""Builds the configured engine. Imports happen here and late, since importing vLLM takes seconds."""

# ruff: noqa: PLC0415  (see above)

from collections.abc import Callable

from services.scheduler.config import SchedulerConfig
from services.scheduler.engine import Engine

EngineFactory = Callable[[SchedulerConfig, str, int], Engine]


def build_engine(config: SchedulerConfig, address: str, generation: int) -> Engine:
    """An engine that is not started. ``address``: host:port under which routers reach this process."""
    return _FACTORIES[config.engine](config, address, generation)


def _fake(config: SchedulerConfig, address: str, generation: int) -> Engine:
    from services.scheduler.fake_engine import FakeEngine

    return FakeEngine(config, address, generation)


def _vllm(config: SchedulerConfig, address: str, generation: int) -> Engine:
    from services.scheduler.vllm_environment import prepare_environment

    prepare_environment()

    from services.scheduler.vllm_engine import VllmEngine

    return VllmEngine(config, address, generation)


_FACTORIES: dict[str, EngineFactory] = {"fake": _fake, "vllm": _vllm}
