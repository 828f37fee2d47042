"""What chooses experts and depths."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from services.common.expert import Expert
from services.scheduler.apex.block import Block, Choice
from services.scheduler.apex.history import RequestHistory


@dataclass(frozen=True, slots=True)
class Candidate:
    """One request that gets its next block chosen."""

    history: RequestHistory
    experts: Sequence[Expert]
    """That can draft for it, ``PLAIN`` always among them; without n-gram where its text holds no match."""
    ngram_found: int
    """Draft tokens that the n-gram expert has found, at most the deepest depth; 0: none."""
    ngram_match: int
    """Tokens of the match behind which it found them; 0: none."""
    deepest: int
    """Most draft tokens that fit: into the context, into what is left of the answer, into the step's budget."""
    expert: Expert | None = None
    """Pinned; None: free."""
    depth: int | None = None
    """Pinned; None: free."""
    is_routed: bool = False
    """What is pinned was the router's choice."""
    waste_price: float | None = None
    """See ``Profile.waste_price``; None: the replica's own."""


class Policy(Protocol):
    """Not thread-safe; lives between two steps of the engine core, so it must be fast: 0.5 ms for 64 requests."""

    @property
    def odds_factors(self) -> Mapping[Expert, float]:
        """By expert, what a depth model's odds of rejection are multiplied by on this replica; empty without one."""

    def choose(self, candidates: Sequence[Candidate]) -> list[Choice]:
        """One for each candidate, in order. All of them will be verified in one step."""

    def observe(self, blocks: Sequence[tuple[RequestHistory, Block]]) -> None:
        """The outcomes of one step, plain blocks included; before the histories are told."""
