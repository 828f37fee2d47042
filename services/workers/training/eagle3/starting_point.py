"""Where a head starts: with what a linear map can tell of the target's next state, in closed form.

``norm`` and ``lm_head`` are the target's own, for which the last residual stream is the right input. One ridge
regression foretells that of token i + 1 from the three streams at i and the embedding of token i + 1. The streams'
share of it is ``fc``. The embedding can only come in through the attention: every head looks for tokens like the one
it is at, which is mostly that token itself, and its values carry the regression's most telling directions. Own
derivation: from a random start a head spends most of a short training on finding out what a bigram model knows.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from services.common.training.ridge import fit_batch, ridge
from services.common.training.training_data import AnsweredPrompt
from services.workers.training.eagle3.head import Eagle3Head

FIT_TOKENS = 40_000
SELF_ATTENTION = 1.2
"""Scale of queries and keys: large enough that a token's own key wins, small enough to learn something else."""
RANDOM_SHARE = 0.2
"""Of their random start that the attention's weights and the MLP's output keep: without it, heads would stay alike."""
_LEAST_SPREAD = 1e-4


def fit_start(head: Eagle3Head, sequences: Sequence[AnsweredPrompt], embedding: Tensor) -> None:
    """Sets ``aux_scale``, ``fc``, the layer's norms and its attention by the first ``FIT_TOKENS`` positions.

    Args:
        head: with the target's norm and the rows of its LM head.
        sequences: to learn from; at least one must have two positions.
        embedding: the target's, [vocabulary, hidden].
    """
    batch = fit_batch(sequences, FIT_TOKENS)
    # A sequence's first token has a stream like no other, and its last one has no next.
    rows = (~batch.starts[:-1] & ~batch.starts[1:]).nonzero()[:, 0]
    layer = head.midlayer
    with torch.no_grad():
        head.aux_scale.copy_(1 / batch.states[rows].std(0).clamp_min(_LEAST_SPREAD))
        states = batch.states[rows] * head.aux_scale
        tokens = layer.input_layernorm(embedding[batch.tokens[rows + 1]].float())
        fitted = ridge(torch.cat([states, tokens], dim=-1), batch.last[rows + 1])
        of_states, of_tokens = fitted.split([states.shape[1], tokens.shape[1]], dim=1)
        head.fc.weight.copy_(of_states)
        _carry(head, tokens, of_tokens)
        streams = head.fc(states)
        for norm in (layer.hidden_norm, layer.post_attention_layernorm):
            norm.weight.fill_(1.0)
            norm.weight.copy_(1 / norm(streams).std(0).clamp_min(_LEAST_SPREAD))
        layer.mlp.down_proj.weight.mul_(RANDOM_SHARE)


def _carry(head: Eagle3Head, tokens: Tensor, wanted: Tensor) -> None:
    """Lets the attention give ``wanted`` [hidden, hidden] @ token, as far as its values are wide enough for that.

    Args:
        head: to be changed.
        tokens: [N, hidden], normed embeddings.
        wanted: the map.
    """
    attention, hidden = head.midlayer.self_attn, tokens.shape[1]
    width = attention.head_dim
    queries, groups = (proj.out_features // width for proj in (attention.q_proj, attention.k_proj))
    # Coordinates count as much as the final norm lets the LM head see of them.
    seen = head.norm.weight.abs().clamp_min(1e-3)
    outputs = (tokens @ wanted.T) * seen
    directions = torch.linalg.eigh(outputs.T @ outputs).eigenvectors.flip(1)[:, : groups * width]
    for proj in (attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj):
        proj.weight.mul_(RANDOM_SHARE)
    attention.v_proj.weight[: directions.shape[1], :hidden] += (directions.T * seen) @ wanted
    shared = queries // groups
    for group in range(groups):
        rows = slice(group * width, (group + 1) * width)
        likeness = SELF_ATTENTION * torch.linalg.qr(torch.randn(hidden, width))[0].T
        attention.k_proj.weight[rows, :hidden] += likeness
        back = directions[:, rows] / seen[:, None] / shared
        for query in range(group * shared, (group + 1) * shared):
            attention.q_proj.weight[query * width : (query + 1) * width, :hidden] += likeness
            attention.o_proj.weight[:, query * width : query * width + back.shape[1]] += back
