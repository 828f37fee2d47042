"""An EAGLE-3 head in plain PyTorch, as vLLM's ``llama_eagle3.py`` computes it, for many positions and steps at once.

    g    = fc(three residual streams of the target at position i)
    g'   = layer(embedding of token i + 1, g)      attention over [norm of the embedding, norm of g], then an MLP
    draft of token i + 2 = d2t[argmax lm_head(norm(g'))]

The next step takes g' for g and the drafted token, one position further; training does the same with the true tokens
(training-time test of EAGLE-3, arXiv 2503.01840). Module names are the tensors' names in the file.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention, silu
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from services.workers.training.eagle3.config import AUX_STATES
from services.workers.training.eagle3.unrolled_attention import attend


class Eagle3Head(nn.Module):
    """The head's weights; the embedding is the target's and not among them."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        hidden = config.hidden_size
        self.fc = nn.Linear(AUX_STATES * hidden, hidden, bias=False)
        self.midlayer = _Layer(config)
        self.norm = nn.RMSNorm(hidden, config.rms_norm_eps)
        self.lm_head = nn.Linear(hidden, config.draft_vocab_size, bias=False)
        # Streams have coordinates a hundred times as large as others, from which gradient descent suffers. Training
        # sees them at one scale; the file has the scale multiplied into ``fc``.
        self.register_buffer("aux_scale", torch.ones(AUX_STATES * hidden))
        self.aux_scale: Tensor

    def unroll(self, aux: Tensor, embeddings: Tensor, lengths: Sequence[int], steps: int) -> list[Tensor]:
        """Runs ``steps`` steps from every position of packed sequences, on their own tokens.

        Args:
            aux: [P, 3 × hidden], the target's streams at each position.
            embeddings: [P, hidden], of the token at each position.
            lengths: of the sequences; sum P.
            steps: at least 1.

        Returns:
            One [P, hidden] a step, before ``norm``: row i of step t (from 0) foretells token i + 2 + t. The last 1 + t
            rows of each sequence have no token to read and are to be left out.
        """
        hidden = self.fc(aux * self.aux_scale)
        within = torch.cat([torch.arange(length) for length in lengths])
        earlier: list[tuple[Tensor, Tensor]] = []
        outputs = []
        for step in range(steps):
            hidden = self.midlayer(embeddings.roll(-1 - step, 0), hidden, within + step, lengths, earlier)
            outputs.append(hidden)
        return outputs

    def logits(self, outputs: Tensor) -> Tensor:
        """Over the draft vocabulary: [N, hidden] of ``unroll`` → [N, draft vocabulary]."""
        made: Tensor = self.lm_head(self.norm(outputs))
        return made


class _Layer(nn.Module):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.hidden_norm = nn.RMSNorm(hidden, eps)
        self.input_layernorm = nn.RMSNorm(hidden, eps)
        self.self_attn = _Attention(config)
        self.post_attention_layernorm = nn.RMSNorm(hidden, eps)
        self.mlp = _Mlp(hidden, config.intermediate_size)

    def forward(
        self,
        embeddings: Tensor,
        hidden: Tensor,
        positions: Tensor,
        lengths: Sequence[int],
        earlier: list[tuple[Tensor, Tensor]],
    ) -> Tensor:
        inputs = torch.cat([self.input_layernorm(embeddings), self.hidden_norm(hidden)], dim=-1)
        hidden = hidden + self.self_attn(inputs, positions, lengths, earlier)
        made: Tensor = hidden + self.mlp(self.post_attention_layernorm(hidden))
        return made


class _Attention(nn.Module):
    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        queries, keys = config.num_attention_heads * self.head_dim, config.num_key_value_heads * self.head_dim
        inputs = 2 * config.hidden_size
        self.q_proj = nn.Linear(inputs, queries, bias=False)
        self.k_proj = nn.Linear(inputs, keys, bias=False)
        self.v_proj = nn.Linear(inputs, keys, bias=False)
        self.o_proj = nn.Linear(queries, config.hidden_size, bias=False)
        # Llama's rotary embedding knows every kind of ``rope_parameters``; it has no weights.
        self.rotary = LlamaRotaryEmbedding(config)

    def forward(
        self, inputs: Tensor, positions: Tensor, lengths: Sequence[int], earlier: list[tuple[Tensor, Tensor]]
    ) -> Tensor:
        """Appends this step's keys and values to ``earlier``: [heads, P, head_dim] each."""
        query, key, value = (
            proj(inputs).view(1, len(inputs), -1, self.head_dim).transpose(1, 2)
            for proj in (self.q_proj, self.k_proj, self.v_proj)
        )
        query, key = apply_rotary_pos_emb(query, key, *self.rotary(inputs, positions[None]))
        earlier.append((key[0], value[0]))
        outputs, start = [], 0
        for length in lengths:
            rows = slice(start, start + length)
            own = [(keys[:, rows], values[:, rows]) for keys, values in earlier]
            if len(own) == 1:
                (keys, values), *_ = own
                mixed = scaled_dot_product_attention(
                    query[:, :, rows], keys[None], values[None], is_causal=True, enable_gqa=True
                )[0]
            else:
                mixed = attend(query[0, :, rows], own)
            outputs.append(mixed.transpose(0, 1).reshape(length, -1))
            start += length
        made: Tensor = self.o_proj(torch.cat(outputs))
        return made


class _Mlp(nn.Module):
    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden, inner, bias=False)
        self.up_proj = nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        made: Tensor = self.down_proj(silu(self.gate_proj(inputs)) * self.up_proj(inputs))
        return made
