"""What is known of one request before its next block: the causal state of papers/apex section 4.1."""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from services.common.expert import Expert
from services.scheduler.apex.arms import ARMS, POSITIONS, arm_of
from services.scheduler.apex.block import Block
from services.scheduler.apex.features import EXPERT_ROWS, FEATURES, OF_CANDIDATE, OF_EXPERT, OF_REQUEST
from services.scheduler.apex.prefix_statistics import PrefixStatistics

FAST, SLOW = 0.5, 0.1
"""Weight of the newest block in the two moving averages."""

OWN_MEMORY: Final = 0.95
"""Weight that a request's own outcomes keep with each later block of the same arm."""

ROW_OF: Final = {expert: row for row, expert in enumerate(EXPERT_ROWS)}
_EXPERT_AT = slice(len(OF_REQUEST), len(OF_REQUEST) + len(OF_EXPERT))
_SINCE_AT = len(OF_REQUEST) + OF_EXPERT.index("blocks_since")
CANDIDATE_AT: Final = slice(len(FEATURES) - len(OF_CANDIDATE), len(FEATURES))
"""Where ``states`` leaves room for what a candidate adds."""


class RequestHistory:
    """Told of the prompt, then of every block with the tokens that it brought, in order. Costs O(new tokens) a block.

    Attributes:
        blocks: so far.
        max_tokens: of the answer.
        answer_tokens: so far.
        states: features by expert (``EXPERT_ROWS``), without the candidate's own, [experts, features]; read only.
        at_risk: how often a draft at each position was reached and judged, lately, [arms, positions]; read only.
        rejected: how often drafts were rejected, lately, [arms]; read only.
    """

    __slots__ = (
        "__weakref__", "_averages", "_emitted", "_last_at", "_prompt_tokens", "_text", "_tried",
        "answer_tokens", "at_risk", "blocks", "max_tokens", "rejected", "states",
    )  # fmt: skip

    def __init__(self, prompt: Sequence[int], max_tokens: int) -> None:
        """``max_tokens``: of the answer."""
        self.blocks = 0
        self.max_tokens = max_tokens
        self.answer_tokens = 0
        self.states: NDArray[np.float32] = np.zeros((len(EXPERT_ROWS), len(FEATURES)), np.float32)
        self.at_risk: NDArray[np.float32] = np.zeros((len(ARMS), POSITIONS), np.float32)
        self.rejected: NDArray[np.float32] = np.zeros(len(ARMS), np.float32)
        self._text = PrefixStatistics(prompt)
        self._prompt_tokens = math.log1p(len(prompt))
        self._emitted = (0.0, 0.0)
        self._last_at = [0] * len(EXPERT_ROWS)
        self._tried = [0] * len(EXPERT_ROWS)
        self._averages = [(0.0, 0.0, 0.0, 0.0)] * len(EXPERT_ROWS)
        self._write_request(requests=0)

    def extend(self, tokens: Sequence[int]) -> None:
        """Tokens came outside of a block: the first one, or one after a preemption."""
        self.answer_tokens += len(tokens)
        self._text.extend(tokens)
        self._write_request(requests=0)

    def observe(self, block: Block, tokens: Sequence[int]) -> None:
        """A block ended; ``tokens`` are what it emitted."""
        self.blocks += 1
        self.answer_tokens += len(tokens)
        self._text.extend(tokens)
        fast, slow = self._emitted
        first = self.blocks == 1
        self._emitted = (
            _mix(fast, block.emitted, 1.0 if first else FAST),
            _mix(slow, block.emitted, _slow(self.blocks)),
        )
        self._write_request(block.requests)
        if block.drafted:
            self._drafted(block)
        self.states[:, _SINCE_AT] = [math.log1p(self.blocks - last) for last in self._last_at]

    def features(self, expert: Expert, ngram_match: int, ngram_found: int) -> NDArray[np.float32]:
        """What a model reads for the next block with ``expert``: [features], in the order of ``FEATURES``.

        Args:
            expert: that would draft.
            ngram_match: tokens of the match; 0: none. Any expert's drafts live longer in text that repeats itself.
            ngram_found: draft tokens that were found behind it.
        """
        row: NDArray[np.float32] = self.states[ROW_OF[expert]].copy()
        row[CANDIDATE_AT] = (ngram_match, ngram_found)
        return row

    def _write_request(self, requests: int) -> None:
        text = self._text
        self.states[:, : len(OF_REQUEST)] = (
            self.answer_tokens / max(1, self.max_tokens),
            math.log1p(self.answer_tokens),
            self._prompt_tokens,
            text.entropy,
            text.repeated_2,
            text.repeated_3,
            *self._emitted,
            math.log1p(requests),
        )

    def _drafted(self, block: Block) -> None:
        expert = block.choice.expert
        row = ROW_OF[expert]
        self._tried[row] += 1
        self._last_at[row] = self.blocks
        fast, slow = (1.0, 1.0) if self._tried[row] == 1 else (FAST, _slow(self._tried[row]))
        share = block.accepted / block.drafted
        share_fast, share_slow, length_fast, length_slow = self._averages[row]
        self._averages[row] = averages = (
            _mix(share_fast, share, fast),
            _mix(share_slow, share, slow),
            _mix(length_fast, block.accepted, fast),
            _mix(length_slow, block.accepted, slow),
        )
        rejected_at = 0 if block.is_censored else block.accepted + 1
        tried = math.log1p(self._tried[row])
        self.states[row, _EXPERT_AT] = (tried, 0.0, block.accepted, block.drafted, rejected_at, *averages)
        self._count(arm_of(expert, block.choice.ngram_match), block)

    def _count(self, arm: int, block: Block) -> None:
        self.at_risk[arm] *= OWN_MEMORY
        self.at_risk[arm, : min(block.accepted + 1, block.drafted)] += 1.0
        self.rejected[arm] = OWN_MEMORY * self.rejected[arm] + (not block.is_censored)


def _mix(old: float, new: float, weight: float) -> float:
    return old + weight * (new - old)


def _slow(count: int) -> float:
    """The plain mean until there is enough to forget."""
    return max(SLOW, 1.0 / count)
