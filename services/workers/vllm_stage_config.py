"""vLLM's configuration of one stage, and the fingerprint by which scheduler and stage know that theirs agree."""

import json
import os

from vllm.config import VllmConfig
from vllm.engine.arg_utils import EngineArgs

from services.common.fingerprint import fingerprint
from services.common.version import vllm_version
from services.workers.place import StagePlace


def stage_config(place: StagePlace, engine_args_json: str) -> VllmConfig:
    """From the engine arguments of the scheduler. Raises what vLLM raises for bad ones."""
    # Model runner V2 keeps other state (and is not there on CPUs); one stage code for both platforms needs V1.
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "0"
    if place.layer_partition:
        os.environ["VLLM_PP_LAYER_PARTITION"] = ",".join(map(str, place.layer_partition))
    arguments = json.loads(engine_args_json) | {
        "pipeline_parallel_size": place.stages,
        "tensor_parallel_size": place.tensor_ranks,
        # Only its side effect matters: vLLM must not look for the other ranks' devices on this host.
        "distributed_executor_backend": "mp",
        # The runner keeps its tokens where the host can read them, also when the scheduler runs ahead.
        "async_scheduling": False,
    }
    if place.embeds_on_host:
        # The runner then embeds outside what is compiled; see vllm_host_embedding.
        arguments["enable_prompt_embeds"] = True
    if place.draft_adapter or place.predictor_layer:
        # The streams that a stage gives out (vllm_stream_tap) are part of its graph, and nothing else in the
        # configuration tells vLLM so, which would take another graph out of its compilation cache.
        tapped = {"forerun_tapped": [place.draft_adapter, place.predictor_layer]}
        arguments["additional_config"] = arguments.get("additional_config", {}) | tapped
    return EngineArgs(**arguments).create_engine_config()


def stage_fingerprint(config: VllmConfig, engine_args_json: str) -> str:
    """Over arguments, model files and vLLM's version."""
    return fingerprint(engine_args_json, config.model_config.hf_config.to_json_string(use_diff=False), vllm_version())
