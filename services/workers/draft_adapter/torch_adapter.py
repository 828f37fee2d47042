"""The draft adapter in plain PyTorch: trained with this, and the reference for the form that serves.

    x      = input_proj(input_norm(h)) (+ h)          h: residual stream after the exit layer
    y      = x + o_proj(attention(qkv_proj(attn_norm(x))))
    logits = head_rows @ final_norm(y)                both frozen, out of the target's checkpoint

No MLP: the adapter runs on the stage that must not become the slowest.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from services.workers.draft_adapter.config import DraftAdapterConfig


class DraftAdapter(nn.Module):
    """From the exit layer's residual stream to the input of the target's final norm."""

    def __init__(self, config: DraftAdapterConfig) -> None:
        super().__init__()
        hidden = config.hidden_size
        self.queries = config.num_attention_heads * config.head_dim
        self.keys = config.num_key_value_heads * config.head_dim
        self.head_dim = config.head_dim
        self.input_residual = config.input_residual
        self.input_norm = nn.RMSNorm(hidden, config.rms_norm_eps)
        self.input_proj = nn.Linear(hidden, hidden, bias=False)
        self.attn_norm = nn.RMSNorm(hidden, config.rms_norm_eps)
        self.qkv_proj = nn.Linear(hidden, self.queries + 2 * self.keys, bias=False)
        self.o_proj = nn.Linear(self.queries, hidden, bias=False)
        # Llama's rotary embedding knows every kind of ``rope_parameters``; it has no weights.
        self.rotary = LlamaRotaryEmbedding(
            LlamaConfig(
                head_dim=config.head_dim,
                hidden_size=hidden,
                num_attention_heads=config.num_attention_heads,
                max_position_embeddings=config.max_position_embeddings,
                rope_parameters=config.rope_parameters,
            )
        )

    def forward(self, states: Tensor, lengths: Sequence[int]) -> Tensor:
        """Runs whole sequences, packed one after another; each attends to itself alone, causally.

        Args:
            states: [tokens, hidden], the residual stream after the exit layer.
            lengths: of the sequences; their sum is ``tokens``.

        Returns:
            [tokens, hidden], for ``DraftHead``.
        """
        x = self.input_proj(self.input_norm(states))
        if self.input_residual:
            x = x + states
        return x + self.o_proj(self._attention(self.qkv_proj(self.attn_norm(x)), lengths))

    def _attention(self, qkv: Tensor, lengths: Sequence[int]) -> Tensor:
        cos, sin = self.rotary(qkv, torch.arange(max(lengths), device=qkv.device)[None])
        outputs = []
        for sequence in qkv.split(list(lengths)):
            length = len(sequence)
            # [1, heads, length, head_dim] each
            query, key, value = (
                part.view(1, length, -1, self.head_dim).transpose(1, 2)
                for part in sequence.split([self.queries, self.keys, self.keys], dim=-1)
            )
            query, key = apply_rotary_pos_emb(query, key, cos[:, :length], sin[:, :length])
            mixed = scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
            outputs.append(mixed.transpose(1, 2).reshape(length, self.queries))
        return torch.cat(outputs)


class DraftHead(nn.Module):
    """The target's final norm and the rows of its LM head that can be drafted; frozen."""

    def __init__(self, norm_weight: Tensor, rows: Tensor, eps: float) -> None:
        """``norm_weight``: [hidden]; ``rows``: [draft vocabulary, hidden]."""
        super().__init__()
        self.norm = nn.RMSNorm(len(norm_weight), eps)
        self.norm.weight = nn.Parameter(norm_weight, requires_grad=False)
        self.rows = nn.Parameter(rows, requires_grad=False)

    def forward(self, y: Tensor) -> Tensor:
        """Logits over the draft vocabulary: [tokens, hidden] → [tokens, draft vocabulary]."""
        return self.norm(y) @ self.rows.T
