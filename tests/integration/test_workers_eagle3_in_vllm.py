"""vLLM's own EAGLE-3 class loads the file that training writes, and computes with it what training computed."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AutoConfig, LlamaConfig
from vllm import EngineArgs
from vllm.config import set_current_vllm_config
from vllm.distributed import (
    destroy_distributed_environment,
    destroy_model_parallel,
    ensure_model_parallel_initialized,
    init_distributed_environment,
)
from vllm.forward_context import set_forward_context
from vllm.model_executor.model_loader.utils import process_weights_after_loading
from vllm.model_executor.models.llama_eagle3 import Eagle3LlamaForCausalLM

from services.workers.training.eagle3.config import aux_layers, head_config
from services.workers.training.eagle3.files import save_head
from services.workers.training.eagle3.head import Eagle3Head
from tests.support.tiny_checkpoint import write_tiny_checkpoint

LAYERS, HIDDEN, DRAFTED = 6, 128, 64
TOKENS = 9


class CausalAttention(nn.Module):
    """In the place of vLLM's attention, which needs an engine's KV cache: the same over one whole sequence."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self._width = config.head_dim

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        parts = (each.view(1, len(each), -1, self._width).transpose(1, 2) for each in (query, key, value))
        return scaled_dot_product_attention(*parts, is_causal=True, enable_gqa=True)[0].transpose(0, 1).flatten(1)


@pytest.fixture(scope="module", name="config")
def config_fixture(tmp_path_factory: pytest.TempPathFactory) -> LlamaConfig:
    model = write_tiny_checkpoint(tmp_path_factory.mktemp("files") / "model", LAYERS, HIDDEN)
    config = head_config(AutoConfig.from_pretrained(model), aux_layers(LAYERS), DRAFTED)
    config.name_or_path = str(model)
    return config


@pytest.fixture(scope="module", name="head")
def head_fixture(config: LlamaConfig) -> Eagle3Head:
    torch.manual_seed(1)
    head = Eagle3Head(config)
    for weight in head.parameters():
        torch.nn.init.normal_(weight, 1.0 if weight.dim() == 1 else 0.0, 0.1)
        # What the file keeps, so that nothing but the arithmetic can differ.
        weight.data = weight.data.bfloat16().float()
    return head


@pytest.fixture(scope="module", name="served")
def served_fixture(config: LlamaConfig, head: Eagle3Head, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """vLLM's model with its configuration, as an engine would make it."""
    folder = tmp_path_factory.mktemp("head") / "eagle3"
    save_head(folder, config, head, torch.arange(DRAFTED) * 3 + 1)
    vllm_config = EngineArgs(
        model=config.name_or_path,
        speculative_config={"method": "eagle3", "model": str(folder), "num_speculative_tokens": 3},
        enforce_eager=True,
        dtype="float32",
    ).create_engine_config()
    with set_current_vllm_config(vllm_config):
        init_distributed_environment(1, 0, f"file://{folder}/rendezvous", 0, "gloo")
        ensure_model_parallel_initialized(1, 1)
        model = Eagle3LlamaForCausalLM(vllm_config=vllm_config)
        model.load_weights(load_file(folder / "model.safetensors").items())
        model_config = vllm_config.speculative_config.draft_model_config
        process_weights_after_loading(model, model_config, torch.device("cpu"))
        model.model.layers[0].self_attn.attn = CausalAttention(config)
        with set_forward_context(None, vllm_config):
            yield model
    destroy_model_parallel()
    destroy_distributed_environment()


def test_every_weight_but_the_embedding_comes_from_the_file(served: Any) -> None:
    assert served.has_own_lm_head
    # Without this, vLLM takes the target's embedding.
    assert not getattr(served, "has_own_embed_tokens", False)
    assert torch.equal(served.draft_id_to_target_id + torch.arange(DRAFTED), torch.arange(DRAFTED) * 3 + 1)


@torch.inference_mode()
def test_the_hidden_states_and_logits_are_those_of_training(served: Any, head: Eagle3Head) -> None:
    aux, embeddings = torch.randn(TOKENS, 3 * HIDDEN), torch.randn(TOKENS, HIDDEN)
    (ours,) = head.unroll(aux, embeddings, [TOKENS], 1)
    count = TOKENS - 1
    combined = served.combine_hidden_states(aux[:count])
    # vLLM's input is shifted by one token: position i reads the embedding of token i + 1.
    final, handed_on = served(None, torch.arange(count), combined, embeddings[1:])
    torch.testing.assert_close(handed_on, ours[:count], rtol=1e-3, atol=1e-3)
    logits = served.compute_logits(final)
    torch.testing.assert_close(
        logits[:, torch.arange(DRAFTED) * 3 + 1], head.logits(ours[:count]), rtol=1e-3, atol=1e-3
    )
    assert (logits > -torch.inf).sum(dim=1).tolist() == [DRAFTED] * count
