"""What the heads are to predict, from block records (papers/apex section 4.5, design section 6).

    throughput t = emitted / (draft_s + verify_s)
    utility      = log t + b_a log(a + 0.1) - b_w (k - a) / k - b_g regret_g - b_m regret_m

with a of k drafts accepted and the profile's weights b. A regret is the share by which t stays behind the best action
(expert and depth) of the same prompt, or the best depth of the same expert, by the throughput of whole requests:
max(0, 1 - t / best). These references are known in traces only; nothing of them is needed to serve.
"""

from collections import defaultdict
from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from services.common.expert_profiles import Profile
from services.scheduler.apex.block_table import BlockTable

EPSILON = 0.1
"""Keeps the logarithm of no accepted draft finite."""

Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Labels:
    """By block, [blocks]."""

    log_cost: Values
    log_throughput: Values
    utility: Values

    def as_array(self) -> Values:
        """In the order of ``depth_net.OUTCOMES``, [blocks, 3]."""
        return np.stack([self.log_cost, self.log_throughput, self.utility], axis=1)


def labels_of(blocks: BlockTable, profile: Profile) -> Labels:
    """Of blocks that took time and emitted something; others have no throughput."""
    seconds = blocks.draft_s + blocks.verify_s
    throughput = blocks.emitted / seconds
    wasted = (blocks.drafted - blocks.accepted) / np.maximum(blocks.drafted, 1)
    best, best_of_expert = _references(blocks, seconds)
    utility = (
        np.log(throughput)
        + profile.accepted * np.log(blocks.accepted + EPSILON)
        - profile.waste * wasted
        - profile.regret * _regret(throughput, best)
        - profile.expert_regret * _regret(throughput, best_of_expert)
    )
    return Labels(np.log(seconds), np.log(throughput), utility)


def _regret(throughput: Values, best: Values) -> Values:
    return np.maximum(0.0, 1.0 - throughput / best)


def _references(blocks: BlockTable, seconds: Values) -> tuple[Values, Values]:
    """Of each block's prompt: tokens a second of its best action, and of its best with the request's expert."""
    actions = _actions(blocks)
    tokens: dict[tuple[Hashable, ...], float] = defaultdict(float)
    spent: dict[tuple[Hashable, ...], float] = defaultdict(float)
    for action, gained, took in zip(actions, blocks.emitted.tolist(), seconds.tolist(), strict=True):
        tokens[action] += gained
        spent[action] += took
    best: dict[Hashable, float] = defaultdict(float)
    for (prompt, expert, depth), emitted in tokens.items():
        rate = emitted / spent[prompt, expert, depth]
        best[prompt] = max(best[prompt], rate)
        best[prompt, expert] = max(best[prompt, expert], rate)
    overall = np.array([best[prompt] for prompt, _, _ in actions])
    return overall, np.array([best[prompt, expert] for prompt, expert, _ in actions])


def _actions(blocks: BlockTable) -> list[tuple[str, str, int]]:
    """By block, prompt, expert and depth of its whole request: those of the deepest draft that it asked for.

    Where an expert finds nothing to draft its request goes on plainly; such blocks are part of what the expert costs.
    """
    of_request: dict[str, tuple[int, str]] = {}
    for request, expert, depth in zip(blocks.request_id, blocks.expert, blocks.depth.tolist(), strict=True):
        of_request[request] = max(of_request.get(request, (0, expert)), (depth, expert))
    return [
        (prompt, of_request[request][1], of_request[request][0])
        for prompt, request in zip(blocks.prompt_id, blocks.request_id, strict=True)
    ]
