"""Activations of a stage whose batch has other rows, or another order, than this one's.

Relies on (vLLM 0.32, model runner V1): the runner first brings its batch up to date, rows in the order of
``input_batch.req_ids``, and then reads the received tensors once, through ``items()``.
"""

from collections.abc import ItemsView, Mapping, Sequence
from typing import Any

import torch
from vllm.sequence import IntermediateTensors


class ArrivedRows(IntermediateTensors):
    """Tensors in the sender's order that are read in the order of the runner's batch."""

    def __init__(
        self, tensors: dict[str, torch.Tensor], sent: Sequence[str], tokens: Mapping[str, int], batch: Any
    ) -> None:
        """
        Args:
            tensors: each [tokens, hidden].
            sent: the sender's requests, in the order of their tokens.
            tokens: how many each of them has.
            batch: the runner's input batch, whose requests are among them.
        """
        super().__init__(tensors)
        self._sent = sent
        self._tokens = tokens
        self._batch = batch

    def items(self) -> ItemsView[str, torch.Tensor]:
        """The batch's rows."""
        wanted = list(self._batch.req_ids)
        if wanted == self._sent:
            return dict(self.tensors).items()
        spans, begin = {}, 0
        for request_id in self._sent:
            spans[request_id] = range(begin, begin := begin + self._tokens[request_id])
        index = torch.tensor([token for request_id in wanted for token in spans[request_id]])
        return {name: tensor[index.to(tensor.device)] for name, tensor in self.tensors.items()}.items()
