"""Which target a learned part belongs to: two checkpoints share a fingerprint when such a part serves both.

The shape of the model and the norm before its head: training or tuning a model moves that norm, and it is small enough
to be read at every start.
"""

import hashlib
import json
from typing import Any

import torch

from services.common.target_weights import TargetWeights

_SHAPE = (
    "model_type", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "vocab_size",
)  # fmt: skip


def target_fingerprint(model: str, hf_config: Any) -> str:
    """SHA-256 in hexadecimal.

    Args:
        model: folder or Hugging Face id of a safetensors checkpoint.
        hf_config: its Hugging Face configuration.

    Raises:
        ConfigError: the checkpoint has no norm that is read here; see ``TargetWeights``.
    """
    shape = {name: getattr(hf_config, name, None) for name in _SHAPE}
    norm = TargetWeights(model).final_norm().to(torch.float32).contiguous()
    digest = hashlib.sha256(json.dumps(shape, sort_keys=True).encode())
    digest.update(norm.numpy().tobytes())
    return digest.hexdigest()
