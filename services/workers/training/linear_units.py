"""Units of a gated MLP that pass numbers on as they are, so that a linear map can be a start for it."""

from typing import Final, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from services.common.training.ridge import ridge

GATE: Final = 4.0
"""What the gates of such units are held at: far enough from 0 that SiLU hardly bends."""


class GatedMlp(Protocol):
    """down(silu(gate(x)) * up(x)), as in Llama and Qwen."""

    gate_proj: nn.Linear
    up_proj: nn.Linear
    down_proj: nn.Linear


def fit_linear_units(mlp: GatedMlp, units: Tensor, scale: Tensor, inputs: Tensor, wanted: Tensor) -> None:
    """Makes ``units`` of the MLP add the ridge regression of ``wanted`` on ``inputs``, less what the others add.

    Args:
        mlp: to be changed.
        units: indexes, at most as many as inputs; unit i passes input i on.
        scale: of each input, by which it comes to a spread of about 1, [in].
        inputs: [N, in].
        wanted: [N, out].
    """
    width, count = inputs.shape[1], len(units)
    with torch.no_grad():
        mlp.gate_proj.weight[units] = GATE * ridge(inputs, torch.ones(len(inputs), 1))
        mlp.up_proj.weight[units] = torch.diag(scale)[:count, :width]
        made = silu(mlp.gate_proj(inputs)) * mlp.up_proj(inputs)
        others = torch.ones(made.shape[1], dtype=torch.bool)
        others[units] = False
        rest = wanted - made[:, others] @ mlp.down_proj.weight[:, others].T
        mlp.down_proj.weight[:, units] = ridge(made[:, units], rest)
