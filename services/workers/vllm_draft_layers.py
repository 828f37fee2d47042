"""The draft adapter as vLLM layers: paged attention with a KV cache of its own, tensor-parallel linear layers.

The same mathematics as ``draft_adapter.torch_adapter``, which training uses. Relies on (vLLM 0.32): an ``Attention``
layer that is built under ``set_current_vllm_config`` registers itself by its prefix in the static forward context, from
which the runner makes KV cache specifications, block tables and attention metadata, so the draft layer gets all three
like any layer of the model. Its prefix carries the layer number after the model's last one, which the cache binding
sorts by.
"""

import torch
from torch import nn
from vllm.config import VllmConfig
from vllm.distributed import get_tensor_model_parallel_world_size
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.layers.layernorm import RMSNorm
from vllm.model_executor.layers.linear import QKVParallelLinear, ReplicatedLinear, RowParallelLinear
from vllm.model_executor.layers.rotary_embedding import get_rope

from services.workers.draft_adapter.config import DraftAdapterConfig


class DraftLayers(nn.Module):
    """Linear, one attention layer, the target's final norm and the reduced LM head."""

    def __init__(self, config: DraftAdapterConfig, vllm_config: VllmConfig) -> None:
        """To be built under ``set_current_vllm_config``, before the runner is asked for its KV cache specifications."""
        super().__init__()
        model = vllm_config.model_config
        prefix = f"forerun_draft.layers.{model.get_total_num_hidden_layers()}.self_attn"
        ranks = get_tensor_model_parallel_world_size()
        heads, kv_heads = config.num_attention_heads // ranks, max(1, config.num_key_value_heads // ranks)
        self._split = [heads * config.head_dim, kv_heads * config.head_dim, kv_heads * config.head_dim]
        size = config.hidden_size
        self.input_norm = RMSNorm(size, eps=config.rms_norm_eps)
        self.input_proj = ReplicatedLinear(size, size, bias=False, prefix=f"{prefix}.input_proj")
        self.attn_norm = RMSNorm(size, eps=config.rms_norm_eps)
        self.qkv_proj = QKVParallelLinear(
            size,
            config.head_dim,
            config.num_attention_heads,
            config.num_key_value_heads,
            bias=False,
            prefix=f"{prefix}.qkv_proj",
        )
        self.o_proj = RowParallelLinear(
            config.num_attention_heads * config.head_dim, size, bias=False, prefix=f"{prefix}.o_proj"
        )
        self.rotary_emb = get_rope(
            config.head_dim,
            max_position=model.max_model_len,
            rope_parameters=getattr(model.hf_config, "rope_parameters", None),
        )
        self.attn = Attention(
            heads,
            config.head_dim,
            config.head_dim**-0.5,
            num_kv_heads=kv_heads,
            cache_config=vllm_config.cache_config,
            prefix=f"{prefix}.attn",
        )
        self.final_norm = RMSNorm(size, eps=config.rms_norm_eps)
        self.head = ReplicatedLinear(size, config.draft_vocab_size, bias=False, prefix=f"{prefix}.head")
        self.register_buffer("d2t", torch.zeros(config.draft_vocab_size, dtype=torch.int64))
        self._adds_input = config.input_residual

    def load(self, tensors: dict[str, torch.Tensor], final_norm: torch.Tensor, head_rows: torch.Tensor) -> None:
        """Takes the adapter's tensors (``draft_adapter.files`` names them) and what it borrows from the target.

        Args:
            tensors: by name.
            final_norm: [hidden].
            head_rows: the LM head's rows of ``d2t``, [draft vocabulary, hidden].
        """
        borrowed = {"final_norm.weight": final_norm, "head.weight": head_rows}
        for name, tensor in {**tensors, **borrowed}.items():
            owner = self.get_submodule(name.rpartition(".")[0])
            if owner is self.qkv_proj:
                queries = self.qkv_proj.total_num_heads * self.qkv_proj.head_size
                keys = self.qkv_proj.total_num_kv_heads * self.qkv_proj.head_size
                for shard, part in zip("qkv", tensor.split([queries, keys, keys]), strict=True):
                    owner.weight_loader(owner.weight, part, shard)
            elif hasattr(owner, "weight_loader"):
                owner.weight_loader(owner.weight, tensor)
            else:
                self.state_dict(keep_vars=True)[name].data.copy_(tensor)
        for module in (self.input_proj, self.qkv_proj, self.o_proj, self.head):
            # Packs the weights where the platform's kernels want that (CPU).
            module.quant_method.process_weights_after_loading(module)

    def forward(self, positions: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """Fills the draft layer's KV cache for the step's tokens.

        Args:
            positions: [tokens].
            hidden: the residual stream after the exit layer, [tokens, hidden].

        Returns:
            The draft's residual stream, [tokens, hidden]. To be called inside the step's forward context.
        """
        projected, _ = self.input_proj(self.input_norm(hidden))
        stream = hidden + projected if self._adds_input else projected
        qkv, _ = self.qkv_proj(self.attn_norm(stream))
        query, key, value = qkv.split(self._split, dim=-1)
        query, key = self.rotary_emb(positions, query, key)
        attended, _ = self.o_proj(self.attn(query.contiguous(), key.contiguous(), value.contiguous()))
        return stream + attended

    def logits(self, stream: torch.Tensor) -> torch.Tensor:
        """Over the draft vocabulary, [rows, draft vocabulary], float32, for the given rows of the stream."""
        logits, _ = self.head(self.final_norm(stream))
        return logits.float()
