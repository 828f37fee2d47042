"""The adapter in PyTorch against its formula written out, one position and one head at a time."""

import math

import pytest
import torch
from torch import Tensor

from services.workers.draft_adapter.config import DraftAdapterConfig
from services.workers.draft_adapter.torch_adapter import DraftAdapter, DraftHead
from tests.support.small_adapter import make_config


def make_adapter(config: DraftAdapterConfig) -> DraftAdapter:
    torch.manual_seed(1)
    adapter = DraftAdapter(config)
    with torch.no_grad():
        # Ones would hide a norm that is applied in the wrong place.
        adapter.input_norm.weight.uniform_(0.5, 1.5)
        adapter.attn_norm.weight.uniform_(0.5, 1.5)
    return adapter


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / (x.pow(2).mean() + eps).sqrt() * weight


def rotate(vector: Tensor, position: int, theta: float) -> Tensor:
    """Rotary embedding in its neox form: pairs are one half of the head apart."""
    half = len(vector) // 2
    rotated = torch.empty_like(vector)
    for index in range(half):
        angle = position * theta ** (-index / half)
        first, second = vector[index], vector[index + half]
        rotated[index] = first * math.cos(angle) - second * math.sin(angle)
        rotated[index + half] = second * math.cos(angle) + first * math.sin(angle)
    return rotated


def by_hand(config: DraftAdapterConfig, weights: dict[str, Tensor], states: Tensor) -> Tensor:
    """One sequence, [length, hidden] → [length, hidden]."""
    size, groups = config.head_dim, config.num_attention_heads // config.num_key_value_heads
    queries, keys = config.num_attention_heads * size, config.num_key_value_heads * size
    theta = config.rope_parameters["rope_theta"]
    xs, qs, ks, vs = [], [], [], []
    for position, h in enumerate(states):
        x = weights["input_proj.weight"] @ rms_norm(h, weights["input_norm.weight"], config.rms_norm_eps)
        x = x + h if config.input_residual else x
        qkv = weights["qkv_proj.weight"] @ rms_norm(x, weights["attn_norm.weight"], config.rms_norm_eps)
        xs.append(x)
        qs.append([rotate(head, position, theta) for head in qkv[:queries].view(-1, size)])
        ks.append([rotate(head, position, theta) for head in qkv[queries : queries + keys].view(-1, size)])
        vs.append(list(qkv[queries + keys :].view(-1, size)))
    outputs = []
    for position, x in enumerate(xs):
        heads = []
        for head in range(config.num_attention_heads):
            scores = torch.stack([qs[position][head] @ ks[at][head // groups] for at in range(position + 1)])
            shares = (scores / math.sqrt(size)).softmax(0)
            heads.append(sum(shares[at] * vs[at][head // groups] for at in range(position + 1)))
        outputs.append(x + weights["o_proj.weight"] @ torch.cat(heads))
    return torch.stack(outputs)


@pytest.mark.parametrize("input_residual", [True, False])
def test_packed_sequences_follow_the_formula_each_for_itself(input_residual: bool) -> None:
    config = make_config(input_residual=input_residual)
    adapter = make_adapter(config)
    lengths = [5, 1, 7]
    states = torch.randn(sum(lengths), config.hidden_size) * 3
    expected = torch.cat([by_hand(config, dict(adapter.state_dict()), part) for part in states.split(lengths)])
    torch.testing.assert_close(adapter(states, lengths), expected, rtol=1e-4, atol=1e-5)


def test_a_position_sees_nothing_younger() -> None:
    config = make_config()
    adapter = make_adapter(config)
    states = torch.randn(8, config.hidden_size)
    changed = states.clone()
    changed[5:] += 1
    before, after = adapter(states, [8]), adapter(changed, [8])
    torch.testing.assert_close(before[:5], after[:5])
    assert not torch.allclose(before[5:], after[5:])


def test_its_weights_are_those_of_the_file() -> None:
    config = make_config()
    assert set(make_adapter(config).state_dict()) == {
        "input_norm.weight", "input_proj.weight", "attn_norm.weight", "qkv_proj.weight", "o_proj.weight",
    }  # fmt: skip


def test_the_head_is_the_targets_norm_and_rows_and_is_frozen() -> None:
    norm, rows, y = torch.rand(32) + 0.5, torch.randn(10, 32), torch.randn(4, 32)
    head = DraftHead(norm, rows, 1e-5)
    expected = torch.stack([rows @ rms_norm(each, norm, 1e-5) for each in y])
    torch.testing.assert_close(head(y), expected, rtol=1e-4, atol=1e-5)
    assert not any(parameter.requires_grad for parameter in head.parameters())
