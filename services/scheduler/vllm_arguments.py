"""From our configuration to vLLM's engine arguments, for the engine core and for the stages."""

import dataclasses
import difflib
import json
from typing import Any

from vllm.config import KVEventsConfig
from vllm.engine.arg_utils import AsyncEngineArgs

from services.common.errors import ConfigError
from services.scheduler.config import SchedulerConfig
from services.scheduler.engine_core_settings import EngineCoreSettings
from services.scheduler.experts_config import ExpertsConfig
from services.workers.draft_adapter.config import CONFIG_NAME, DraftAdapterConfig

_OURS = {
    "model": "set `model` instead",
    "served_model_name": "set `served_model_names` instead",
    "scheduler_cls": "it is Forerun's",
    "distributed_executor_backend": "it follows from `stages`",
    "otlp_traces_endpoint": "set `telemetry.otlp_endpoint` instead",
    "kv_events_config": "cached prefixes are named in the ledger instead; see ledger.prefix_blocks",
    "data_parallel_size": "run several replicas instead",
    "async_scheduling": "set `run_ahead` instead",
    "speculative_config": "set `experts` (one stage) or `speculation` (several) instead",
    "per_request_spec_decode_metrics": "it follows from `experts`",
}
_OURS_WITH_STAGES = {
    "pipeline_parallel_size": "it follows from `stages`",
    "tensor_parallel_size": "it follows from `stages`",
}


def plain_arguments(config: SchedulerConfig) -> dict[str, Any]:
    """What engine core and stages have in common: the user's arguments, the model and the parallel sizes.

    Raises ``ConfigError`` for arguments that vLLM does not have or that Forerun sets itself.
    """
    _check(config)
    plain: dict[str, Any] = {**config.engine_args, "model": config.model}
    if config.stages:
        plain["pipeline_parallel_size"] = len(config.stages)
        plain["tensor_parallel_size"] = len(config.stages[0])
    if config.experts is not None:
        plain["speculative_config"] = speculative_config(config.experts, plain.get("tensor_parallel_size", 1))
    return plain


def speculative_config(experts: ExpertsConfig, tensor_ranks: int) -> dict[str, Any]:
    """vLLM's settings of a replica's neural drafter, or of an engine that verifies what the scheduler drafts."""
    deepest = {"num_speculative_tokens": experts.deepest}
    if experts.drafter is None:
        return {"method": "custom_class", "model": "services.workers.vllm_lazy_drafter.NoDrafter", **deepest}
    drafter = experts.drafter
    return {
        "method": drafter.kind.value,
        "model": drafter.model,
        "draft_tensor_parallel_size": tensor_ranks,
        **deepest,
    }


def core_settings(config: SchedulerConfig, address: str, generation: int) -> EngineCoreSettings:
    """What Forerun's code in the engine core gets to know."""
    return EngineCoreSettings(
        replica_id=config.replica_id,
        generation=generation,
        address=address,
        stages=config.stages,
        rendezvous=config.rendezvous or "",
        layer_partition=layer_partition(config),
        micro_batching=config.micro_batching,
        embedding=config.embedding,
        speculation=config.speculation,
        experts=config.experts,
        admission=config.admission,
        predictor=config.predictor,
        stage_tls=config.stage_tls,
        stage_allow_plaintext=config.stage_allow_plaintext,
        step_timeout_s=config.step_timeout_s,
        ledger=config.ledger,
        telemetry=config.telemetry,
        metrics_listen=config.engine_metrics_listen,
        metrics_allow_plaintext=config.server.allow_plaintext,
        engine_args_json=json.dumps(plain_arguments(config)),
        max_message_bytes=config.server.max_message_bytes,
    )


def layer_partition(config: SchedulerConfig) -> list[int]:
    """Layers of each stage as configured, else as the draft adapter needs them; empty: split evenly.

    An adapter that only the first stage's machine has says nothing here; that stage then checks its layers itself.
    Raises ``ConfigError`` for an adapter that does not fit the stages.
    """
    if config.layer_partition or config.speculation is None:
        return config.layer_partition
    adapter = config.speculation.draft_adapter
    if not (adapter / CONFIG_NAME).is_file():
        return []
    return DraftAdapterConfig.read(adapter).layer_partition(len(config.stages))


def engine_arguments(config: SchedulerConfig, settings: EngineCoreSettings) -> AsyncEngineArgs:
    """The engine core's arguments: the plain ones, our scheduler, and our executor where there are stages.

    Raises ``ConfigError`` where vLLM does not take them.
    """
    arguments = plain_arguments(config)
    extra = arguments.pop("additional_config", None) or {}
    if config.stages:
        from services.scheduler.vllm_executor import GrpcExecutor  # noqa: PLC0415  (needs no import without stages)

        arguments["distributed_executor_backend"] = GrpcExecutor
    try:
        return AsyncEngineArgs(
            **arguments,
            scheduler_cls=scheduler_class(config),
            # For the ledger's prefix index; the scheduler takes the events itself.
            kv_events_config=KVEventsConfig(enable_kv_cache_events=_names_prefixes(config), publisher="null"),
            served_model_name=list(config.model_names),
            additional_config={**extra, **settings.to_additional_config()},
            per_request_spec_decode_metrics="none" if config.experts is None else "summary",
            # Our stat logger and vLLM's Prometheus one still run; only the periodic log line goes.
            disable_log_stats=True,
            enable_log_requests=False,
        )
    except (ValueError, OSError) as error:
        raise ConfigError(f"model or engine_args: {error}") from error


def _names_prefixes(config: SchedulerConfig) -> bool:
    """Whether routers are told what the replica has cached."""
    caches = config.engine_args.get("enable_prefix_caching") is not False
    return caches and config.ledger.enabled and config.ledger.prefix_blocks > 0


def scheduler_class(config: SchedulerConfig) -> str:
    """Which of our schedulers the engine core gets."""
    if config.speculation is not None:
        return "services.scheduler.vllm_sp_scheduler.SpScheduler"
    if config.experts is not None:
        return "services.scheduler.vllm_experts_scheduler.ExpertsScheduler"
    if config.run_ahead:
        return "services.scheduler.vllm_run_ahead.RunAheadScheduler"
    return "services.scheduler.vllm_scheduler.ForerunScheduler"


def _check(config: SchedulerConfig) -> None:
    known = {field.name for field in dataclasses.fields(AsyncEngineArgs)}
    ours = _OURS | (_OURS_WITH_STAGES if config.stages else {})
    for name in config.engine_args:
        if name in ours:
            raise ConfigError(f"engine_args.{name}: must not be set; {ours[name]}")
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]}?" if close else "names are those of vLLM's EngineArgs"
            raise ConfigError(f"engine_args.{name}: unknown engine argument; {hint}")
