"""A block: what was chosen for one step of one request, and what became of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from services.common.expert import Expert


class Why(StrEnum):
    """Why a block has its expert and depth."""

    PINNED = "pinned"
    """The request, or the replica's configuration, asked for it."""
    ROUTED = "routed"
    """The router chose it."""
    LEARNED = "learned"
    """The depth model's best score."""
    AVERAGES = "averages"
    """Best by the acceptance and the cost measured so far; there is no depth model, or it failed."""
    EXPLORED = "explored"
    """Tried to keep those measurements fresh."""
    NOT_POSSIBLE = "not-possible"
    """Nothing could be drafted: no expert is admissible, or there is no room for drafts."""


@dataclass(slots=True)
class Choice:
    """For the next block of one request.

    Not to be changed, though not frozen: a step makes one for each request, and freezing trebles what that takes.
    """

    expert: Expert
    depth: int
    """Draft tokens asked for; 0 exactly with ``Expert.PLAIN``."""
    why: Why
    expected_accepted: float | None = None
    """Of the drafts, where the chooser predicts it."""
    scores: Mapping[tuple[Expert, int], float] = field(default_factory=dict)
    """By candidate, what was compared; empty where nothing was."""
    ngram_match: int = 0
    """Tokens of the match behind which the n-gram expert drafts; 0 with other experts."""
    hazards: NDArray[np.float32] | None = field(default=None, compare=False, repr=False)
    """Predicted chance of rejection at each position, given that it is reached, where the chooser predicts it; it comes
    back with the block, so the prediction can be held against what happened."""


@dataclass(frozen=True, slots=True)
class Block:
    """One verified block of one request; a plain step is a block without drafts."""

    index: int
    """Of the request's blocks, from 0."""
    choice: Choice
    drafted: int
    """Draft tokens that were verified: fewer than asked where the expert had no more, or they did not fit."""
    accepted: int
    """Of those, from the first one on, by the verifier; also behind a stop, where the request does not get them."""
    emitted: int
    """Tokens that the request got, the verifier's own one included; fewer where the request ended within."""
    requests: int
    """In the step that verified it."""
    rows: int
    """Tokens that the step ran, of all its requests."""
    draft_s: float
    """Seconds that the step's requests waited for the neural drafter; 0 where it did not run."""
    verify_s: float
    """Seconds of the verifying step in the model."""
    features: NDArray[np.float32] | None = field(default=None, compare=False, repr=False)
    """What was known of its expert before the block, in the order of ``features.FEATURES``; None where blocks are not
    recorded."""

    @property
    def is_censored(self) -> bool:
        """Everything was accepted, so what a deeper draft would have met is not known (papers/apex section 4.3)."""
        return self.accepted == self.drafted

    @property
    def kept(self) -> int:
        """Draft tokens that the request got."""
        return min(self.accepted, self.emitted)

    @property
    def wasted(self) -> int:
        """Draft tokens that were verified for nothing."""
        return self.drafted - self.kept
