"""Where a head starts: as an induction head in closed form, not as noise.

A head at row i knows token i + 1 and the target's streams up to i; it shall foretell the target's last stream at i + 1.
What helps most is to look where the same token stood before: row j with token j = token i + 1 holds what the target
made of it, and with its own next token what followed. So (own derivation; every map is a ridge regression):

    fc          the streams' best guess of the next last stream, where the LM head sees it; where it sees least, codes
                of tokens i and i - 1 (``token_codes``)
    keys        codes of tokens j and j - 1, read off the layer's inputs; and a constant
    queries     codes of tokens i + 1 and i: such a row is found again; the first query head of each group has the
                constant instead and finds its own row, by which the embedding of token i + 1 comes in
    values      the directions of the inputs that tell most, of rows found either way
    o_proj      from all heads' values, what fc has left open, and the codes that the next step's queries need

``norm`` and ``lm_head`` are the target's own. From a random start a head spends a short training on finding out that
texts repeat themselves.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from services.common.training.ridge import fit_batch, ridge
from services.common.training.training_data import AnsweredPrompt, Batch
from services.workers.training.eagle3.head import Eagle3Head
from services.workers.training.eagle3.token_codes import (
    causal_shares,
    fast_pairs,
    previous,
    slow_pairs,
    token_codes,
)
from services.workers.training.linear_units import fit_linear_units

FIT_TOKENS: Final = 40_000
SAME_TOKEN, SAME_PREVIOUS, SAME_ROW = 18.0, 6.0, 40.0
"""Scores of a key that matches in its token, in the token before, and by its position."""
RANDOM_SHARE: Final = 0.2
"""Of their random start that weights keep which the closed form does not set: without it they would stay alike."""
INVERSE_DAMPING: Final = 0.1
"""Of P⁻¹, as a share of the mean square of P's singular values: what P nearly loses is not blown up."""
CODE_SHARE: Final = 0.1
"""Of the energy of ``fc``'s output that codes have."""
_PREVIOUS_SHARE: Final = 3
"""One in so many numbers of a key is of the token before."""
_LEAST_SPREAD: Final = 1e-4


@dataclass(frozen=True, slots=True, eq=False)
class _Codes:
    """Of the tokens of every row, by group of heads.

    Attributes:
        key: [groups, P, width], of tokens i and i - 1.
        query: [groups, P, width], of tokens i + 1 and i.
    """

    key: Tensor
    query: Tensor


def fit_start(head: Eagle3Head, sequences: Sequence[AnsweredPrompt], embedding: Tensor) -> None:
    """Sets ``aux_scale``, ``fc`` and the layer by the first ``FIT_TOKENS`` positions.

    Args:
        head: with the target's norm and the rows of its LM head.
        sequences: to learn from; at least one must have two positions.
        embedding: the target's, [vocabulary, hidden].
    """
    batch = fit_batch(sequences, FIT_TOKENS)
    with torch.no_grad():
        head.aux_scale.copy_(1 / batch.states.std(0).clamp_min(_LEAST_SPREAD))
        codes = _codes(head, batch, embedding)
        hidden, written = _fit_fc(head, batch, codes)
        inputs = _fit_norms(head, hidden, embedding[batch.tokens.roll(-1)].float())
        _fit_keys_and_queries(head, inputs, codes, batch)
        rows = _rows(batch)
        wanted = batch.last[rows + 1] + written[rows + 1]
        mixed = _fit_values(head, inputs, wanted, batch)
        _fit_outputs(head, hidden[rows], mixed[rows], wanted)


def _rows(batch: Batch) -> Tensor:
    """Positions with a stream behind them, but for each sequence's first: that one's streams are like no others."""
    return (~batch.starts & ~batch.starts.roll(-1)).nonzero()[:, 0]


def _codes(head: Eagle3Head, batch: Batch, embedding: Tensor) -> _Codes:
    attention = head.midlayer.self_attn
    groups = attention.k_proj.out_features // attention.head_dim
    room = len(slow_pairs(attention.rotary.inv_freq))
    of_previous = room // _PREVIOUS_SHARE
    makes = [token_codes(embedding, batch.tokens, width, groups) for width in (room - of_previous, of_previous)]
    same, before = (codes[:, batch.tokens] for codes in makes)
    earlier = torch.stack([previous(each, batch.starts) for each in before])
    return _Codes(torch.cat([same, earlier], -1), torch.cat([same.roll(-1, 1), before], -1))


def _fit_fc(head: Eagle3Head, batch: Batch, codes: _Codes) -> tuple[Tensor, Tensor]:
    """Returns the output of ``fc`` and the part of it that is codes, [P, hidden] each."""
    rows = _rows(batch)
    states = batch.states * head.aux_scale
    last, wanted = ridge(states[rows], batch.last[rows]), torch.cat(list(codes.key), -1)
    read = _unseen(head, batch.last[rows], wanted.shape[1]) @ ridge(states[rows], wanted[rows])
    spreads = [(states[rows] @ each.T).var(0).sum() for each in (last, read)]
    read *= (CODE_SHARE * spreads[0] / spreads[1]).sqrt()
    head.fc.weight.copy_(last + read)
    return head.fc(states), states @ read.T


def _unseen(head: Eagle3Head, streams: Tensor, codes: int) -> Tensor:
    """[hidden, codes]: writes codes where the LM head sees least and the target's last ``streams`` hardly vary."""
    rows = head.lm_head.weight * head.norm.weight
    centred = streams - streams.mean(0)
    grams = [each.T @ each for each in (rows, centred)]
    directions = torch.linalg.eigh(sum(each / each.trace() for each in grams)).eigenvectors
    room = min(codes, directions.shape[1] // 4)
    return directions[:, :room] @ torch.linalg.qr(torch.randn(codes, room))[0].T


def _fit_norms(head: Eagle3Head, hidden: Tensor, embedded: Tensor) -> Tensor:
    """Gives every coordinate of the streams one scale; returns the attention's inputs, [P, 2 × hidden]."""
    layer = head.midlayer
    layer.hidden_norm.weight.fill_(1.0)
    layer.hidden_norm.weight.copy_(1 / layer.hidden_norm(hidden).std(0).clamp_min(_LEAST_SPREAD))
    return torch.cat([layer.input_layernorm(embedded), layer.hidden_norm(hidden)], dim=-1)


def _fit_keys_and_queries(head: Eagle3Head, inputs: Tensor, codes: _Codes, batch: Batch) -> None:
    attention, rows = head.midlayer.self_attn, _rows(batch)
    width = attention.head_dim
    groups, heads = (proj.out_features // width for proj in (attention.k_proj, attention.q_proj))
    slow, fast = slow_pairs(attention.rotary.inv_freq), fast_pairs(attention.rotary.inv_freq)
    weights = torch.full((len(slow),), (SAME_TOKEN * width**0.5) ** 0.5)
    weights[len(slow) - len(slow) // _PREVIOUS_SHARE :] = (SAME_PREVIOUS * width**0.5) ** 0.5
    constant = ridge(inputs[rows], torch.ones(len(rows), 1)) * (SAME_ROW * width**0.5 / max(1, len(fast))) ** 0.5
    for proj in (attention.q_proj, attention.k_proj):
        proj.weight.mul_(RANDOM_SHARE)
    for group in range(groups):
        keys = attention.k_proj.weight[group * width : (group + 1) * width]
        keys[slow] = ridge(inputs[rows], codes.key[group, rows] * weights)
        keys[fast] = constant
        shared = heads // groups
        for index in range(shared):
            start = (group * shared + index) * width
            queries = attention.q_proj.weight[start : start + width]
            if index == 0:
                queries[fast] = constant
            else:
                queries[slow] = ridge(inputs[rows], codes.query[group, rows] * weights)


def _fit_values(head: Eagle3Head, inputs: Tensor, wanted: Tensor, batch: Batch) -> Tensor:
    """Returns what the heads have found, [P, heads × width]; ``wanted``: of ``_rows``."""
    attention, rows = head.midlayer.self_attn, _rows(batch)
    width = attention.head_dim
    groups, heads = (proj.out_features // width for proj in (attention.v_proj, attention.q_proj))
    shares = _shares(head, inputs, batch)
    finders = torch.arange(heads) % (heads // groups) != 0
    parts = inputs.split(batch.lengths)
    found = torch.cat([each[finders].mean(0) @ part for each, part in zip(shares, parts, strict=True)])
    maps = ridge(torch.cat([inputs, found], -1)[rows], wanted).split(inputs.shape[1], dim=1)
    attention.v_proj.weight.copy_(_telling(inputs[rows], maps, head.lm_head.weight * head.norm.weight, groups * width))
    values = attention.v_proj(inputs).view(len(inputs), groups, width).transpose(0, 1)
    per_head = values.repeat_interleave(heads // groups, 0).split(batch.lengths, 1)
    return torch.cat([(each @ part).transpose(0, 1).flatten(1) for each, part in zip(shares, per_head, strict=True)])


def _fit_outputs(head: Eagle3Head, hidden: Tensor, mixed: Tensor, wanted: Tensor) -> None:
    """``o_proj``, and the MLP as a linear map behind it: together they give the regression of ``wanted`` on both.

    With wanted = P hidden + Q mixed, the attention writes P⁻¹ Q mixed and the MLP turns all by P.

    Args:
        head: to be changed.
        hidden: [N, hidden], outputs of ``fc``.
        mixed: [N, heads × width], what the heads have found.
        wanted: [N, hidden].
    """
    layer, width = head.midlayer, hidden.shape[1]
    of_hidden, of_mixed = ridge(torch.cat([hidden, mixed], -1), wanted).split([width, mixed.shape[1]], dim=1)
    gram = of_hidden.T @ of_hidden
    damped = gram + INVERSE_DAMPING * gram.trace() / width * torch.eye(width)
    layer.self_attn.o_proj.weight.copy_(torch.linalg.solve(damped, of_hidden.T @ of_mixed))
    stream = hidden + layer.self_attn.o_proj(mixed)
    norm = layer.post_attention_layernorm
    norm.weight.fill_(1.0)
    norm.weight.copy_(1 / norm(stream).std(0).clamp_min(_LEAST_SPREAD))
    normed = norm(stream)
    mlp, units = layer.mlp, torch.arange(min(width, layer.mlp.up_proj.out_features))
    for proj in (mlp.gate_proj, mlp.up_proj, mlp.down_proj):
        proj.weight.mul_(RANDOM_SHARE)
    fit_linear_units(mlp, units, torch.ones(width), normed, wanted - stream)


def _telling(inputs: Tensor, maps: Sequence[Tensor], sight: Tensor, count: int) -> Tensor:
    """[count, in] maps to what the outputs of ``maps``, [out, in] each, depend on most, of spread 1.

    Args:
        inputs: [N, in].
        maps: see above.
        sight: what is made of the outputs, [any, out].
        count: of directions.
    """
    spread, axes = torch.linalg.eigh(inputs.T @ inputs / len(inputs))
    root = spread.clamp_min(1e-6).sqrt()
    seen = sight.T @ sight
    grams = torch.stack([(each @ axes * root).T @ seen @ (each @ axes * root) for each in maps])
    directions = torch.linalg.eigh(grams.sum(0)).eigenvectors.flip(1)[:, :count]
    # Dealt out, so that every group of heads gets some of the strongest.
    dealt = directions.T[torch.randperm(count)]
    return (dealt / root) @ axes.T


def _shares(head: Eagle3Head, inputs: Tensor, batch: Batch) -> list[Tensor]:
    """Attention of each sequence, [heads, L, L]."""
    attention = head.midlayer.self_attn
    query, key = (
        proj(inputs).view(1, len(inputs), -1, attention.head_dim).transpose(1, 2)
        for proj in (attention.q_proj, attention.k_proj)
    )
    positions = torch.cat([torch.arange(length) for length in batch.lengths])
    query, key = apply_rotary_pos_emb(query, key, *attention.rotary(inputs, positions[None]))
    return causal_shares(query[0], key[0].repeat_interleave(query.shape[1] // key.shape[1], 0), batch.lengths)
