"""Where a head starts: so that step after step it hands on something like the target's last residual stream.

``norm`` and ``lm_head`` are the target's own, for which the last stream is the right input; ``fc`` is the ridge
regression of it on the three streams. The layer's outputs start small: it has to learn what the next token changes.
"""

from collections.abc import Sequence

import torch

from services.common.training.ridge import fit_streams, ridge
from services.common.training.training_data import AnsweredPrompt
from services.workers.training.eagle3.head import Eagle3Head

FIT_TOKENS = 60_000
LAYER_SHARE = 0.1
"""Of their random start that the outputs of attention and MLP keep."""
_LEAST_SPREAD = 1e-4


def fit_start(head: Eagle3Head, sequences: Sequence[AnsweredPrompt]) -> None:
    """Sets ``aux_scale``, ``fc`` and the layer's norms by the first ``FIT_TOKENS`` positions of ``sequences``."""
    states, last = fit_streams(sequences, FIT_TOKENS)
    with torch.no_grad():
        head.aux_scale.copy_(1 / states.std(0).clamp_min(_LEAST_SPREAD))
        head.fc.weight.copy_(ridge(states * head.aux_scale, last))
        streams = head.fc(states * head.aux_scale)
        layer = head.midlayer
        for norm in (layer.hidden_norm, layer.post_attention_layernorm):
            norm.weight.fill_(1.0)
            norm.weight.copy_(1 / norm(streams).std(0).clamp_min(_LEAST_SPREAD))
        layer.self_attn.o_proj.weight.mul_(LAYER_SHARE)
        layer.mlp.down_proj.weight.mul_(LAYER_SHARE)
