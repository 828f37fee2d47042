"""The first stage's token embedding in host memory: looked up there, and only the rows of the step cross over.

It frees vocabulary x hidden weights on the device that also drafts. Relies on (vLLM 0.32, model runner V1):

- with ``enable_prompt_embeds`` the runner embeds a step's token ids itself, outside what is compiled or captured as a
  graph, and hands the model ``inputs_embeds``; warm-up and capture run so too. ``stage_config`` sets it;
- ``VocabParallelEmbedding`` holds the rows of its tensor rank, by ``shard_indices``, and the ranks' parts add up.

A head that is tied to the embedding shares nothing with it here: it is on the last stage, which is another process,
and the draft head reads its rows from the checkpoint. On a CPU the weight stays where it is, in host memory.
"""

import structlog
import torch
from torch import nn
from torch.nn import functional
from vllm.distributed import tensor_model_parallel_all_reduce
from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod, VocabParallelEmbedding

from services.common.errors import ConfigError

_log = structlog.get_logger(__name__)


class HostEmbedding(nn.Module):
    """Rows ``first`` and on of a vocabulary, in host memory; token ids of other ranks' rows give zeros."""

    def __init__(self, weight: torch.Tensor, first: int = 0, *, tensor_ranks: int = 1) -> None:
        """``weight``: [rows, hidden], copied to the host if it is elsewhere."""
        super().__init__()
        # Not a parameter: nothing that moves the model's parameters to the device may take it along.
        self.host_weight = weight.detach().to("cpu")
        self._first = first
        self._tensor_ranks = tensor_ranks

    def forward(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Embeds ``token_ids`` [tokens], on their device, as [tokens, hidden]."""
        rows = token_ids.to("cpu", torch.int64) - self._first
        if self._tensor_ranks == 1:
            return functional.embedding(rows, self.host_weight).to(token_ids.device)
        foreign = (rows < 0) | (rows >= len(self.host_weight))
        part = functional.embedding(rows.masked_fill(foreign, 0), self.host_weight).masked_fill_(foreign[:, None], 0)
        whole: torch.Tensor = tensor_model_parallel_all_reduce(part.to(token_ids.device))
        return whole


def embed_on_host(model: nn.Module) -> None:
    """Moves the token embedding of a first stage's model to the host.

    To be done before the device's free memory is measured. Raises ``ConfigError`` when the model has not exactly one
    embedding over its vocabulary, or a quantized one.
    """
    found = [(name, module) for name, module in model.named_modules() if type(module) is VocabParallelEmbedding]
    if len(found) != 1 or not isinstance(found[0][1].quant_method, UnquantizedEmbeddingMethod):
        raise ConfigError(
            f"embedding: host needs one token embedding that is not quantized; {type(model).__name__} has "
            f"{[name for name, _ in found]}; set embedding: device"
        )
    (name, embedding), *_ = found
    shard = embedding.shard_indices
    owned = embedding.weight[: shard.org_vocab_end_index - shard.org_vocab_start_index]
    device = owned.device
    host = HostEmbedding(owned, shard.org_vocab_start_index, tensor_ranks=embedding.tp_size)
    parent, _, attribute = name.rpartition(".")
    setattr(model.get_submodule(parent), attribute, host)
    if device.type == "cpu":
        _log.info("embedding: host changes nothing on a CPU, whose memory is the host's")
    else:
        _log.info("embedding_on_host", mib_freed=owned.nbytes >> 20, device=str(device))
