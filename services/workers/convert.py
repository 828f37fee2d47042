"""Stage messages to the worker's own types and back. Pure."""

import traceback

from forerun.stage.v1 import service_pb2 as pb

from services.workers.place import StagePlace

WORKER_METHODS: dict[int, str] = {
    pb.WORKER_METHOD_GET_KV_CACHE_SPEC: "get_kv_cache_spec",
    pb.WORKER_METHOD_GET_SUPPORTED_KV_CACHE_LAYOUTS: "get_supported_kv_cache_layouts",
    pb.WORKER_METHOD_SET_KV_CACHE_LAYOUT: "set_kv_cache_layout",
    pb.WORKER_METHOD_DETERMINE_AVAILABLE_MEMORY: "determine_available_memory",
    pb.WORKER_METHOD_INITIALIZE_FROM_CONFIG: "initialize_from_config",
    pb.WORKER_METHOD_COMPILE_OR_WARM_UP_MODEL: "compile_or_warm_up_model",
    pb.WORKER_METHOD_GET_SUPPORTED_TASKS: "get_supported_tasks",
    pb.WORKER_METHOD_UPDATE_MAX_MODEL_LEN: "update_max_model_len",
    pb.WORKER_METHOD_RESET_MM_CACHE: "reset_mm_cache",
    pb.WORKER_METHOD_RESET_ENCODER_CACHE: "reset_encoder_cache",
    pb.WORKER_METHOD_SUPPORTS_DRAFT_WEIGHT_UPDATES: "supports_draft_weight_updates",
}
"""The closed list of vLLM worker methods that a scheduler may call; LOAD is the stage's own."""


def place_from_proto(request: pb.ConfigureRequest) -> StagePlace:
    """Where the scheduler puts this stage."""
    return StagePlace(
        pipeline_rank=request.pipeline_rank,
        tensor_rank=request.tensor_rank,
        stages=request.pipeline_stages,
        tensor_ranks=request.tensor_parallel_ranks,
        rendezvous=request.rendezvous_address,
        layer_partition=tuple(request.layer_partition),
        draft_adapter=request.draft_adapter,
        generation=request.generation,
        embedding_on_host=request.embedding_on_host,
        predictor_layer=request.predictor_layer if request.predictor_address else 0,
    )


def error_to_proto(error: BaseException) -> pb.StepError:
    """What the scheduler logs and the next stage is told."""
    return pb.StepError(
        kind=type(error).__name__,
        message=str(error),
        traceback="".join(traceback.format_exception(error)),
    )
