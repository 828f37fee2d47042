"""Forerun's text is plain vLLM's, token for token: two stages in float32, and tensor parallelism on a small model.

The full comparison, with a hundred prompts and both precisions, is ``python -m benchmarks.equality``.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.forerun_run import generate
from benchmarks.plain_vllm import Answer, PlainVllm
from benchmarks.prompts import varied_prompts
from benchmarks.systems import THREADS_OF_BOTH_CORES, engine_args, forerun_config
from services.cli.background import BackgroundSystem
from services.client.client import ForerunClient

pytestmark = pytest.mark.timeout(600)

TOKENS = 16
SEEDS = (7, 7, 8)


def texts(answers: list[Answer]) -> list[list[int]]:
    return [answer.tokens for answer in answers]


@pytest.fixture(scope="module")
def prompts(model_path: Path) -> list[list[int]]:
    """Eight of each kind but the long ones, of which two shorter ones keep the test quick."""
    varied = varied_prompts(model_path, 32)
    return [prompt for prompt in varied if len(prompt) < 200] + [p for p in varied if 900 < len(p) < 1600][:2]


@pytest.fixture(scope="module")
def expected(model_path: Path, prompts: list[list[int]]) -> tuple[list[list[int]], list[list[int]]]:
    """Plain vLLM's texts, one at a time and all together."""
    arguments = engine_args(model_path, "float32", enable_prefix_caching=False)
    with PlainVllm(arguments, THREADS_OF_BOTH_CORES, [0, 1]) as plain:
        return texts(plain.generate(prompts, TOKENS, one_by_one=True)), texts(plain.generate(prompts, TOKENS))


@pytest.fixture(scope="module")
def system(model_path: Path, expected: Any) -> Iterator[BackgroundSystem]:
    """Two stages; after the baseline, so that the two never share the cores."""
    with BackgroundSystem(_logging(forerun_config(model_path, 2, "float32", enable_prefix_caching=False))) as running:
        yield running


def _logging(config: dict[str, Any]) -> dict[str, Any]:
    return config | {"telemetry": {"log_level": "info"}}


async def test_two_stages_say_what_one_process_says(
    system: BackgroundSystem, prompts: list[list[int]], expected: tuple[list[list[int]], list[list[int]]]
) -> None:
    async with ForerunClient(system.state.router_grpc) as client:
        assert texts(await generate(client, prompts[:12], TOKENS, one_by_one=True)) == expected[0][:12]
        assert texts(await generate(client, prompts, TOKENS)) == expected[1]


async def test_the_same_seed_says_the_same_and_another_does_not(
    system: BackgroundSystem, prompts: list[list[int]]
) -> None:
    async with ForerunClient(system.state.router_grpc) as client:
        first, again, other = [texts(await generate(client, prompts[:4], TOKENS, seed=seed)) for seed in SEEDS]
    assert first == again
    assert first != other


def test_vllm_still_leaves_the_activation_buffers_to_us(system: BackgroundSystem) -> None:
    """Fails when upstream makes them in eager mode too: then ``ModelStage._prepare_intermediate_tensors`` can go."""
    made = "made the activation buffers that vLLM's warm-up did not make"
    first, last = (system.unit(f"replica-0.stage-{rank}").log_file.read_text() for rank in (0, 1))
    assert (made in first, made in last) == (False, True)


@pytest.fixture(scope="module")
def small_model(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama with an even number of heads: SmolLM2's nine do not split by two."""
    folder = tmp_path_factory.mktemp("small-llama")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=49_152,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        eos_token_id=2,
    )
    LlamaForCausalLM(config).to(torch.float32).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"):
        if (model_path / name).exists():
            shutil.copy(model_path / name, folder)
    return folder


async def test_two_tensor_ranks_say_what_one_process_says(small_model: Path, prompts: list[list[int]]) -> None:
    limits = {"enable_prefix_caching": False, "max_model_len": 2048}
    with PlainVllm(engine_args(small_model, "float32", **limits), THREADS_OF_BOTH_CORES, [0, 1]) as plain:
        expected = texts(plain.generate(prompts[:8], TOKENS))
    config = forerun_config(small_model, 1, "float32", **limits)
    config["replicas"][0]["tensor_parallel"] = 2
    with BackgroundSystem(config) as system:
        async with ForerunClient(system.state.router_grpc) as client:
            assert texts(await generate(client, prompts[:8], TOKENS)) == expected
