"""The token embedding in host memory: what crosses over, what stays, and the parts of tensor ranks."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from services.common.errors import ConfigError
from services.workers import vllm_host_embedding
from services.workers.vllm_host_embedding import HostEmbedding, embed_on_host

WEIGHT = torch.arange(40, dtype=torch.float32).reshape(10, 4)


def test_it_embeds_as_the_device_would() -> None:
    ids = torch.tensor([3, 0, 9, 3], dtype=torch.int32)
    assert torch.equal(HostEmbedding(WEIGHT)(ids), functional.embedding(ids, WEIGHT))


def test_the_weight_stays_behind_when_the_model_moves_to_a_device() -> None:
    """``meta`` stands for the device."""
    model = nn.Sequential(HostEmbedding(WEIGHT), nn.Linear(4, 4)).to("meta")
    assert model[1].weight.device.type == "meta"
    assert model[0].host_weight.device.type == "cpu"
    assert not list(model[0].parameters()) and not list(model[0].buffers())


def test_rows_are_handed_over_on_the_device_of_the_token_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    embedding, ids = HostEmbedding(WEIGHT), torch.tensor([1, 2], device="meta")
    moved = torch.Tensor.to

    def to(tensor: torch.Tensor, *target: object) -> torch.Tensor:
        # Token ids cannot come back from ``meta``; everything else is as on any device.
        return torch.tensor([1, 2]) if tensor is ids else moved(tensor, *target)

    monkeypatch.setattr(torch.Tensor, "to", to)
    rows = embedding(ids)
    assert (rows.device.type, rows.shape) == ("meta", (2, 4))


def test_the_parts_of_two_tensor_ranks_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_host_embedding, "tensor_model_parallel_all_reduce", lambda part: part)
    ids = torch.tensor([0, 5, 9, 4])
    parts = [HostEmbedding(WEIGHT[first : first + 5], first, tensor_ranks=2)(ids) for first in (0, 5)]
    assert torch.equal(parts[0] + parts[1], functional.embedding(ids, WEIGHT))


def test_a_model_without_an_embedding_is_refused() -> None:
    with pytest.raises(ConfigError, match="embedding: host needs one token embedding"):
        embed_on_host(nn.Sequential(nn.Linear(4, 4)))
