"""Where training starts: the projection that comes closest to the target's last residual stream, in closed form.

A residual stream has a few coordinates a hundred times as large as the others, from which gradient descent needs longer
to recover than an adapter's training lasts; so the norm's weight makes all of them alike, and the projection is the
ridge regression of the last stream on the first's. Own derivation; the fit is the "tuned lens" without its bias.
"""

from collections.abc import Sequence

import torch

from services.common.training.ridge import fit_batch, ridge
from services.common.training.training_data import AnsweredPrompt
from services.workers.draft_adapter.torch_adapter import DraftAdapter

FIT_TOKENS = 100_000
ATTENTION_SHARE = 0.1
"""Of its random start that the attention's output keeps: it adds to the projection what it learns."""


def fit_start(adapter: DraftAdapter, sequences: Sequence[AnsweredPrompt]) -> None:
    """Sets ``input_norm`` and ``input_proj`` by the first ``FIT_TOKENS`` positions of ``sequences``."""
    batch = fit_batch(sequences, FIT_TOKENS)
    # A sequence's first token has a stream like no other, and nobody drafts after it.
    states, last = batch.states[~batch.starts], batch.last[~batch.starts]
    with torch.no_grad():
        adapter.input_norm.weight.fill_(1.0)
        adapter.input_norm.weight.copy_(1 / adapter.input_norm(states).std(0))
        wanted = last - states if adapter.input_residual else last
        adapter.input_proj.weight.copy_(ridge(adapter.input_norm(states), wanted))
        adapter.o_proj.weight.mul_(ATTENTION_SHARE)
