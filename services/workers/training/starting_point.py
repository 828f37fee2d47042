"""Where training starts: the projection that comes closest to the target's last residual stream, in closed form.

A residual stream has a few coordinates a hundred times as large as the others, from which gradient descent needs longer
to recover than an adapter's training lasts; so the norm's weight makes all of them alike, and the projection is the
ridge regression of the last stream on the first's. Own derivation; the fit is the "tuned lens" without its bias.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from services.workers.draft_adapter.torch_adapter import DraftAdapter
from services.workers.training.training_data import AnsweredPrompt, load_batch

FIT_TOKENS = 100_000
RIDGE = 0.01
ATTENTION_SHARE = 0.1
"""Of its random start that the attention's output keeps: it adds to the projection what it learns."""


def fit_start(adapter: DraftAdapter, sequences: Sequence[AnsweredPrompt]) -> None:
    """Sets ``input_norm`` and ``input_proj`` by the first ``FIT_TOKENS`` positions of ``sequences``."""
    chosen, room = [], FIT_TOKENS
    for sequence in sequences:
        if room <= 0:
            break
        chosen.append(sequence)
        room -= len(sequence)
    batch = load_batch(chosen)
    # A sequence's first token has a stream like no other, and nobody drafts after it.
    states, last = batch.states[~batch.starts], batch.last[~batch.starts]
    with torch.no_grad():
        adapter.input_norm.weight.fill_(1.0)
        adapter.input_norm.weight.copy_(1 / adapter.input_norm(states).std(0))
        wanted = last - states if adapter.input_residual else last
        adapter.input_proj.weight.copy_(_ridge(adapter.input_norm(states), wanted))
        adapter.o_proj.weight.mul_(ATTENTION_SHARE)


def _ridge(inputs: Tensor, outputs: Tensor) -> Tensor:
    """[out, in] weights of the linear map from ``inputs`` [N, in] to ``outputs`` [N, out]."""
    regularised = inputs.T @ inputs + RIDGE * len(inputs) * torch.eye(inputs.shape[1])
    return torch.linalg.solve(regularised, inputs.T @ outputs).T
