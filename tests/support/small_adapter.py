"""A draft adapter for a target of a few numbers, which has no weights: for tests of the format and the arithmetic."""

from types import SimpleNamespace
from typing import Any

import torch

from services.workers.draft_adapter.config import DraftAdapterConfig
from services.workers.draft_adapter.files import D2T, weight_shapes

TARGET = SimpleNamespace(
    num_hidden_layers=6,
    hidden_size=32,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    vocab_size=100,
    rope_parameters={"rope_theta": 10000.0, "rope_type": "default"},
    max_position_embeddings=512,
    rms_norm_eps=1e-5,
)


def make_config(**changes: Any) -> DraftAdapterConfig:
    return DraftAdapterConfig.for_target(
        "tiny", TARGET, **({"exit_layer": 3, "input_residual": True, "draft_vocab_size": 10} | changes)
    )


def make_tensors(config: DraftAdapterConfig) -> dict[str, torch.Tensor]:
    tensors = {name: torch.randn(shape) for name, shape in weight_shapes(config).items() if name != D2T}
    return tensors | {D2T: torch.arange(config.draft_vocab_size) * 3}
