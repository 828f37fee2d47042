"""What a replica's stages are told before its first step, and what is refused because they do not carry it.

Relies on vLLM 0.32's configuration only; runs in the engine-core process.
"""

import json

from forerun.stage.v1 import service_pb2 as pb
from vllm.config import VllmConfig

from services.common.address import join_address, split_address
from services.common.errors import ConfigError
from services.common.fingerprint import fingerprint
from services.common.version import FORERUN_VERSION, STAGE_PROTOCOL_VERSION, vllm_version
from services.scheduler.engine_core_settings import EngineCoreSettings
from services.scheduler.stage_links import StageLinkOptions

_CONNECT_TIMEOUT_S = 120.0
_CALL_TIMEOUT_S = 900.0


def link_options(settings: EngineCoreSettings) -> StageLinkOptions:
    """How the stages are reached."""
    return StageLinkOptions(
        tls=settings.stage_tls,
        allow_plaintext=settings.stage_allow_plaintext,
        max_message_bytes=settings.max_message_bytes,
        connect_timeout_s=_CONNECT_TIMEOUT_S,
        call_timeout_s=_CALL_TIMEOUT_S,
    )


def configure_requests(settings: EngineCoreSettings, config: VllmConfig) -> list[pb.ConfigureRequest]:
    """One for each rank, pipeline-major."""
    # The name by which we reach the first stage, since it may listen on all addresses; it chooses the port.
    rendezvous = settings.rendezvous or join_address(split_address(settings.stages[0][0])[0], 0)
    own = fingerprint(
        settings.engine_args_json, config.model_config.hf_config.to_json_string(use_diff=False), vllm_version()
    )
    return [
        pb.ConfigureRequest(
            protocol_version=STAGE_PROTOCOL_VERSION,
            generation=settings.generation,
            pipeline_rank=pipeline_rank,
            tensor_rank=tensor_rank,
            pipeline_stages=len(settings.stages),
            tensor_parallel_ranks=len(ranks),
            engine_args_json=settings.engine_args_json,
            fingerprint=own,
            rendezvous_address=rendezvous,
            next_stage_address=_next_stage_address(settings, pipeline_rank, tensor_rank),
            forerun_version=FORERUN_VERSION,
            vllm_version=vllm_version(),
            replica_id=settings.replica_id,
            layer_partition=settings.layer_partition,
            embedding_on_host=settings.embedding == "host",
            predictor_address="" if settings.predictor is None else settings.predictor.address,
            predictor_layer=0 if settings.predictor is None else settings.predictor.layer,
            draft_adapter="" if settings.speculation is None else str(settings.speculation.draft_adapter),
        )
        for pipeline_rank, ranks in enumerate(settings.stages)
        for tensor_rank in range(len(ranks))
    ]


def refuse_unsupported(settings: EngineCoreSettings, config: VllmConfig) -> None:
    """Refuses by name at start, not in the middle of a step. Raises ``ConfigError``."""
    refused = {
        "async_scheduling with several stages": config.scheduler_config.async_scheduling
        and config.parallel_config.pipeline_parallel_size > 1,
        "enable_lora": config.lora_config is not None,
        "kv_transfer_config": config.kv_transfer_config is not None,
        "enable_prompt_embeds": config.model_config.enable_prompt_embeds,
        "runner: pooling": config.model_config.runner_type == "pooling",
        "data_parallel_size > 1": config.parallel_config.data_parallel_size > 1,
    }
    named = [name for name, used in refused.items() if used]
    if named:
        raise ConfigError(f"engine_args: stages do not support {', '.join(named)}")
    shape = [config.parallel_config.tensor_parallel_size] * config.parallel_config.pipeline_parallel_size
    if [len(ranks) for ranks in settings.stages] != shape:
        raise ConfigError(f"stages: {json.dumps(settings.stages)} is not {shape} as the engine arguments say")
    partition, layers = settings.layer_partition, config.model_config.get_total_num_hidden_layers()
    if partition and (len(partition) != len(settings.stages) or sum(partition) != layers):
        raise ConfigError(
            f"layer_partition: {partition} must name {len(settings.stages)} stages' layers, {layers} in all"
        )


def _next_stage_address(settings: EngineCoreSettings, pipeline_rank: int, tensor_rank: int) -> str:
    following = settings.stages[pipeline_rank + 1 :]
    return following[0][tensor_rank] if following else ""
