"""An EAGLE-3 head on disk, as published ones are and vLLM loads them: ``config.json`` and ``model.safetensors``.

Tensors, with D the hidden size, Q and K the widths of all query and all key heads, M the MLP's, V' the draft vocabulary
and V the target's:

    fc.weight                                   [D, 3D]
    midlayer.input_layernorm.weight             [D]       of the token's embedding
    midlayer.hidden_norm.weight                 [D]       of the state
    midlayer.self_attn.{q,k,v}_proj.weight      [Q or K, 2D]
    midlayer.self_attn.o_proj.weight            [D, Q]
    midlayer.post_attention_layernorm.weight    [D]
    midlayer.mlp.{gate,up,down}_proj.weight     [M, D], [M, D], [D, M]
    norm.weight                                 [D]
    lm_head.weight                              [V', D]
    d2t                                         [V'] int64, the target's token id less the draft's index
    t2d                                         [V] bool, whether a token can be drafted

No embedding: vLLM takes the target's where the file has none. Where all tokens can be drafted, the maps are left out,
since vLLM knows no place for them then.
"""

from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import LlamaConfig

from services.workers.training.eagle3.config import write_config
from services.workers.training.eagle3.head import Eagle3Head

WEIGHTS_NAME = "model.safetensors"


def head_tensors(head: Eagle3Head, d2t: Tensor, vocab_size: int) -> dict[str, Tensor]:
    """The tensors of the file, by name, weights in bfloat16.

    Args:
        head: trained; its ``aux_scale`` is multiplied into ``fc``.
        d2t: [V'] the target's token id of each draft index, ascending.
        vocab_size: V.
    """
    weights = {name: each.detach() for name, each in head.named_parameters()}
    weights["fc.weight"] = weights["fc.weight"] * head.aux_scale
    tensors = {name: each.to(torch.bfloat16).contiguous() for name, each in weights.items()}
    if len(d2t) == vocab_size:
        return tensors
    t2d = torch.zeros(vocab_size, dtype=torch.bool)
    t2d[d2t] = True
    return {**tensors, "d2t": d2t - torch.arange(len(d2t)), "t2d": t2d}


def save_head(folder: Path, config: LlamaConfig, head: Eagle3Head, d2t: Tensor) -> None:
    """Writes both files into ``folder``, which need not be there."""
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f"{WEIGHTS_NAME}.part"
    save_file(head_tensors(head, d2t, config.vocab_size), part, metadata={"format": "pt"})
    part.replace(folder / WEIGHTS_NAME)
    write_config(folder, config)
