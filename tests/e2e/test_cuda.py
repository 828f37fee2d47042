"""The CUDA path: the same stages, on GPUs. Skipped, visibly, where there is none."""

from pathlib import Path

import pytest
import torch

from benchmarks.forerun_run import generate
from benchmarks.plain_vllm import PlainVllm
from benchmarks.prompts import short_prompts
from benchmarks.systems import forerun_config
from services.cli.background import BackgroundSystem
from services.client.client import ForerunClient

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine"),
]

TOKENS = 32


@pytest.mark.parametrize("stages", [1, 2])
async def test_stages_on_gpus_say_what_plain_vllm_says(model_path: Path, stages: int) -> None:
    if torch.cuda.device_count() < stages:
        pytest.skip(f"{stages} stages need as many CUDA devices, here are {torch.cuda.device_count()}")
    prompts = short_prompts(model_path, 8)
    arguments = {"model": str(model_path), "dtype": "float32", "enforce_eager": True, "max_model_len": 2048}
    environment = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_USE_V2_MODEL_RUNNER": "0"}
    with PlainVllm({**arguments, "gpu_memory_utilization": 0.3}, environment, [0, 1]) as plain:
        expected = [answer.tokens for answer in plain.generate(prompts, TOKENS)]
    config = forerun_config(model_path, stages, "float32", max_model_len=2048, gpu_memory_utilization=0.3)
    with BackgroundSystem(config) as system:
        async with ForerunClient(system.state.router_grpc) as client:
            answers = await generate(client, prompts, TOKENS)
    assert [answer.tokens for answer in answers] == expected
