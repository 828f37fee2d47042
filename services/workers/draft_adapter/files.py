"""A draft adapter on disk: ``config.json`` and ``adapter.safetensors`` in one folder.

Tensors, with D the hidden size, Q and K the widths of all query and all key heads, V' the draft vocabulary:

    input_norm.weight   [D]
    input_proj.weight   [D, D]
    attn_norm.weight    [D]
    qkv_proj.weight     [Q + 2K, D]   query, key and value rows one after another
    o_proj.weight       [D, Q]
    d2t                 [V'] int64    the target's token id of each draft token
"""

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from services.common.errors import ConfigError
from services.workers.draft_adapter.config import DraftAdapterConfig

WEIGHTS_NAME = "adapter.safetensors"
D2T = "d2t"


def weight_shapes(config: DraftAdapterConfig) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor of an adapter, by name."""
    hidden, queries = config.hidden_size, config.num_attention_heads * config.head_dim
    keys = config.num_key_value_heads * config.head_dim
    return {
        "input_norm.weight": (hidden,),
        "input_proj.weight": (hidden, hidden),
        "attn_norm.weight": (hidden,),
        "qkv_proj.weight": (queries + 2 * keys, hidden),
        "o_proj.weight": (hidden, queries),
        D2T: (config.draft_vocab_size,),
    }


def save_adapter(
    folder: Path, config: DraftAdapterConfig, tensors: dict[str, torch.Tensor], dtype: torch.dtype = torch.bfloat16
) -> None:
    """Writes both files; weights in ``dtype``.

    Raises:
        ConfigError: the tensors are not those of the configuration.
    """
    _check(folder / WEIGHTS_NAME, config, tensors)
    folder.mkdir(parents=True, exist_ok=True)
    stored = {name: (each if name == D2T else each.to(dtype)).contiguous() for name, each in tensors.items()}
    part = folder / f"{WEIGHTS_NAME}.part"
    save_file(stored, part, metadata={"format": "pt"})
    part.replace(folder / WEIGHTS_NAME)
    config.write(folder)


def load_adapter(folder: Path) -> tuple[DraftAdapterConfig, dict[str, torch.Tensor]]:
    """The configuration and the tensors, in the type they are stored in, on the CPU.

    Raises:
        ConfigError: a file is missing or damaged, or tensors and configuration do not belong together.
    """
    config = DraftAdapterConfig.read(folder)
    path = folder / WEIGHTS_NAME
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"{path}: cannot be read ({error}); fetch or train the adapter again") from error
    _check(path, config, tensors)
    return config, tensors


def _check(path: Path, config: DraftAdapterConfig, tensors: dict[str, torch.Tensor]) -> None:
    shapes = weight_shapes(config)
    if odd := sorted(shapes.keys() ^ tensors.keys()):
        raise ConfigError(
            f"{path}: {odd[0]} is {'missing' if odd[0] in shapes else 'unknown'}; tensors: {', '.join(shapes)}"
        )
    for name, shape in shapes.items():
        if tuple(tensors[name].shape) != shape:
            raise ConfigError(f"{path}: {name} has shape {list(tensors[name].shape)}, config.json wants {list(shape)}")
    d2t = tensors[D2T]
    if d2t.dtype != torch.int64:
        raise ConfigError(f"{path}: {D2T} is {d2t.dtype}, must be torch.int64")
    if d2t.min() < 0 or d2t.max() >= config.vocab_size or len(d2t.unique()) != len(d2t):
        raise ConfigError(f"{path}: {D2T} must hold different token ids from 0 to {config.vocab_size - 1}")
