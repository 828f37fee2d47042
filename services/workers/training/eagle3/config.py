"""``config.json`` of an EAGLE-3 head, with the fields that vLLM's ``llama_eagle3.py`` reads."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import LlamaConfig, PretrainedConfig

from services.common.errors import ConfigError

ARCHITECTURE = "LlamaForCausalLMEagle3"
AUX_STATES = 3
CONFIG_NAME = "config.json"


def aux_layers(target_layers: int) -> tuple[int, ...]:
    """Numbers of layers before the three residual streams that a head reads.

    They are vLLM's own default, an early, a middle and a late one; of a target too small for that the last three
    streams. vLLM counts alike: its index n is the stream after n layers, with the residual added and before any norm.

    Raises:
        ConfigError: the target has fewer than two layers.
    """
    if target_layers < AUX_STATES - 1:
        raise ConfigError(f"model: it has {target_layers} layer, but an EAGLE-3 head reads {AUX_STATES} streams")
    default = (2, target_layers // 2, target_layers - 3)
    if len(set(default)) == AUX_STATES and list(default) == sorted(default):
        return default
    return tuple(range(target_layers - 2, target_layers + 1))


def head_config(target: Any, layers: Sequence[int], draft_vocab_size: int) -> LlamaConfig:
    """The head's configuration: one layer of Llama's kind with the dimensions of ``target``.

    Args:
        target: the target's Hugging Face configuration, of a Llama- or Qwen-type model.
        layers: see ``aux_layers``.
        draft_vocab_size: tokens that can be drafted; at most the target's vocabulary.
    """
    return LlamaConfig(
        architectures=[ARCHITECTURE],
        num_hidden_layers=1,
        hidden_size=target.hidden_size,
        intermediate_size=target.intermediate_size,
        num_attention_heads=target.num_attention_heads,
        num_key_value_heads=target.num_key_value_heads,
        head_dim=getattr(target, "head_dim", None) or target.hidden_size // target.num_attention_heads,
        hidden_act="silu",
        vocab_size=target.vocab_size,
        draft_vocab_size=draft_vocab_size,
        max_position_embeddings=target.max_position_embeddings,
        rms_norm_eps=target.rms_norm_eps,
        rope_parameters=dict(target.rope_parameters),
        attention_bias=False,
        mlp_bias=False,
        tie_word_embeddings=False,
        bos_token_id=target.bos_token_id,
        eos_token_id=target.eos_token_id,
        eagle_aux_hidden_state_layer_ids=list(layers),
        dtype="bfloat16",
    )


def write_config(folder: Path, config: LlamaConfig) -> None:
    """Stores it in ``folder``."""
    defaults = PretrainedConfig().to_dict()
    # What every configuration has and this one leaves as it is would hide what it says.
    fields = {name: each for name, each in config.to_dict().items() if name not in defaults or each != defaults[name]}
    (folder / CONFIG_NAME).write_text(json.dumps(fields, indent=2, sort_keys=True) + "\n", encoding="utf-8")
