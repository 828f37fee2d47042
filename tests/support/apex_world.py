"""A replica in which how long drafts live and what steps cost is known; policies are let loose on it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from services.common.expert import Expert
from services.scheduler.apex.block import Block, Choice
from services.scheduler.apex.history import RequestHistory
from services.scheduler.apex.policy import Candidate, Policy

Hazards = Callable[[Expert, "WorldRequest"], float]
"""Chance of rejection at every position, of an expert's drafts for a request."""


@dataclass(slots=True)
class WorldRequest:
    """One that runs for ever."""

    history: RequestHistory
    kind: int = 0
    """What its hazard may depend on."""
    rng: np.random.Generator = field(default_factory=np.random.default_rng)


@dataclass(slots=True)
class World:
    """Costs are in seconds: a step with ``rows``, and drafting to ``depth``."""

    hazards: Hazards
    verify_s: Callable[[int], float] = lambda rows: 0.010 + 0.0002 * rows
    draft_s: Callable[[int], float] = lambda depth: 0.001 + 0.001 * depth if depth else 0.0
    neural: Expert | None = Expert.EAGLE3
    ngram_found: int = 16
    ngram_match: int = 3
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    tokens: float = 0.0
    """To be expected of the steps so far, which are judged by it and not by their luck."""
    seconds: float = 0.0

    def request(self, kind: int = 0) -> WorldRequest:
        prompt = self.rng.integers(0, 1000, 20).tolist()
        return WorldRequest(RequestHistory(prompt, 10**6), kind, self.rng)

    def candidate(self, request: WorldRequest, **pins: object) -> Candidate:
        experts = [Expert.PLAIN]
        if self.ngram_found:
            experts.append(Expert.NGRAM)
        if self.neural is not None:
            experts.append(self.neural)
        return Candidate(request.history, experts, self.ngram_found, self.ngram_match, 16, **pins)  # type: ignore[arg-type]

    def step(self, policy: Policy, requests: Sequence[WorldRequest]) -> list[Block]:
        choices = policy.choose([self.candidate(each) for each in requests])
        return self.verify(policy, requests, choices)

    def verify(self, policy: Policy, requests: Sequence[WorldRequest], choices: Sequence[Choice]) -> list[Block]:
        rows = sum(1 + each.depth for each in choices)
        draft_s = self.draft_s(max((each.depth for each in choices if each.expert.is_neural), default=0))
        verify_s = self.verify_s(rows)
        blocks = []
        for request, choice in zip(requests, choices, strict=True):
            hazard = self.hazards(choice.expert, request) if choice.depth else 1.0
            lives = int(self.rng.geometric(hazard)) - 1 if hazard > 0 else choice.depth
            accepted = min(lives, choice.depth)
            self.tokens += 1 + sum((1 - hazard) ** (draft + 1) for draft in range(choice.depth))
            index = request.history.blocks
            blocks.append(
                Block(index, choice, choice.depth, accepted, 1 + accepted, len(requests), rows, draft_s, verify_s)
            )
        policy.observe([(request.history, block) for request, block in zip(requests, blocks, strict=True)])
        for request, block in zip(requests, blocks, strict=True):
            request.history.observe(block, self.rng.integers(0, 1000, block.emitted).tolist())
        self.seconds += draft_s + verify_s
        return blocks

    def run(self, policy: Policy, requests: Sequence[WorldRequest], steps: int) -> float:
        """Tokens per second over some steps."""
        self.tokens, self.seconds = 0.0, 0.0
        for _ in range(steps):
            self.step(policy, requests)
        return self.tokens / self.seconds
