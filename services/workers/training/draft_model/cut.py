"""A small model cut out of the target: some of its layers between its own embedding, final norm and LM head."""

import copy
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM

from services.common.errors import ConfigError

_TOKENIZER_FILES = (
    "tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt", "chat_template.jinja",
)  # fmt: skip


def spread_layers(target_layers: int, count: int) -> tuple[int, ...]:
    """``count`` of the target's layers at even distances, the first and the last among them (one: the first).

    Raises:
        ConfigError: the target has fewer layers.
    """
    if not 1 <= count <= target_layers:
        raise ConfigError(f"layers: a draft of {count} layers cannot be cut from a model of {target_layers}")
    return tuple(round(index * (target_layers - 1) / max(1, count - 1)) for index in range(count))


def cut_model(model: Path, layers: Sequence[int]) -> Any:
    """The target in float32 with ``layers`` (indexes, ascending) alone; embedding and LM head are frozen.

    Raises:
        ConfigError: it is no model of Llama's or Qwen's kind.
    """
    cut = AutoModelForCausalLM.from_pretrained(str(model), dtype=torch.float32)
    decoder = cut.get_decoder()
    if not isinstance(getattr(decoder, "layers", None), nn.ModuleList):
        raise ConfigError(f"{model}: a draft can be cut from Llama- and Qwen-type models only")
    decoder.layers = nn.ModuleList([decoder.layers[index] for index in layers])
    for index, layer in enumerate(decoder.layers):
        # Where a layer keeps its keys when the model generates.
        layer.self_attn.layer_idx = index
    cut.config.num_hidden_layers = len(layers)
    if getattr(cut.config, "layer_types", None):
        cut.config.layer_types = [cut.config.layer_types[index] for index in layers]
    for frozen in (cut.get_input_embeddings(), cut.get_output_embeddings()):
        frozen.weight.requires_grad_(False)
    return cut


def save_draft(folder: Path, draft: Any, target: Path) -> None:
    """Writes an ordinary checkpoint in bfloat16 with the target's tokenizer; the trained model stays as it is.

    Args:
        folder: need not be there.
        draft: of ``cut_model``.
        target: folder of the target.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # By its memory, so that an LM head that is tied to the embedding is stored once.
    distinct = {each.data_ptr(): name for name, each in reversed(draft.state_dict().items())}
    tensors = {name: draft.state_dict()[name].to(torch.bfloat16) for name in distinct.values()}
    draft.save_pretrained(folder, state_dict=tensors)
    config = copy.deepcopy(draft.config)
    # Saving a model writes down the type that it has in memory.
    config.dtype = torch.bfloat16
    config.save_pretrained(folder)
    for pattern in _TOKENIZER_FILES:
        for file in sorted(target.glob(pattern)):
            shutil.copyfile(file, folder / file.name)
