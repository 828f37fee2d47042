"""The requests that draft: what each one's next block shall be, its drafts, and what became of them.

No vLLM in here: the scheduler says what was planned and what came back. A request begins when its first token is there
and is told of every block in order; between two blocks it is chosen for anew, with everything known that has happened.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from services.common.expert import Expert
from services.common.types import RoutedExpert
from services.scheduler.apex.block import Block, Choice
from services.scheduler.apex.history import RequestHistory
from services.scheduler.apex.ngram_index import NOTHING, NgramIndex
from services.scheduler.apex.policy import Candidate, Policy
from services.scheduler.experts_config import ExpertsConfig


@dataclass(frozen=True, slots=True)
class Wish:
    """What a request asks for; None: the replica's choice."""

    expert: Expert | None = None
    depth: int | None = None
    can_draft: bool = True
    """False: its options allow no drafts."""
    routed: RoutedExpert | None = None
    """What the router chose, where the request leaves it open."""
    waste_price: float | None = None
    """See ``Profile.waste_price``; None: the replica's own."""

    @property
    def held_expert(self) -> Expert | None:
        """Of all its blocks; None: chosen for each."""
        if self.expert is None and self.routed is not None and not self.routed.first_block_only:
            return Expert(self.routed.expert)
        return self.expert

    def first_block(self) -> tuple[Expert | None, int | None]:
        """Expert and depth of its first block; None: free."""
        if self.routed is None or self.expert not in (None, self.routed.expert):
            return self.expert, self.depth
        return Expert(self.routed.expert), self.routed.first_draft_tokens if self.depth is None else self.depth


@dataclass(frozen=True, slots=True)
class Verified:
    """What one step did to one block."""

    drafted: int
    accepted: int
    tokens: Sequence[int]
    """What the request got, the verifier's own token included."""


@dataclass(frozen=True, slots=True)
class VerifyingStep:
    """The step that verified some blocks."""

    requests: int
    rows: int
    seconds: float


@dataclass(slots=True)
class _Live:
    history: RequestHistory
    ngrams: NgramIndex | None
    wish: Wish
    choice: Choice | None = None
    """Of the next block; None until it is chosen, and after a preemption."""
    draft_s: float = 0.0
    features: NDArray[np.float32] | None = None
    """Of the chosen expert, as it was chosen; None where blocks are not recorded."""


@dataclass(slots=True)
class LiveBlocks:
    """One per replica."""

    config: ExpertsConfig
    policy: Policy
    _live: dict[str, _Live] = field(default_factory=dict)
    _chosen: list[str] = field(default_factory=list)
    """Requests whose next block was chosen last."""

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._live

    def begin(self, request_id: str, prompt: Sequence[int], answer: Sequence[int], max_tokens: int, wish: Wish) -> None:
        """A request has its first tokens."""
        ngrams = None
        # A record says of every expert what a free choice would have known, so it needs the match of all requests.
        may_look_up = wish.held_expert in (None, Expert.NGRAM) or self.config.record is not None
        if self.config.ngram is not None and wish.can_draft and may_look_up:
            ngrams = NgramIndex([*prompt, *answer], self.config.ngram.shortest_match, self.config.ngram.longest_match)
        history = RequestHistory(prompt, max_tokens)
        history.extend(answer)
        self._live[request_id] = _Live(history, ngrams, wish)

    def extend(self, request_id: str, tokens: Sequence[int]) -> None:
        """A request got tokens outside of a block: it was prefilled again after a preemption."""
        live = self._live[request_id]
        live.history.extend(tokens)
        if live.ngrams is not None:
            live.ngrams.extend(tokens)

    def preempted(self, request_id: str) -> None:
        """Its next block is off."""
        if (live := self._live.get(request_id)) is not None:
            live.choice = None

    def ended(self, request_id: str) -> None:
        """Forgets it; nothing happens for one that is not known."""
        self._live.pop(request_id, None)

    def has_block(self, request_id: str) -> bool:
        """Whether the request's next step is a block's."""
        live = self._live.get(request_id)
        return live is not None and live.choice is not None

    def close(self, verified: Mapping[str, Verified], step: VerifyingStep) -> dict[str, Block]:
        """A step came back: the blocks of the requests in ``verified``, which all have one."""
        blocks = {}
        for request_id, each in verified.items():
            live = self._live[request_id]
            assert live.choice is not None
            blocks[request_id] = Block(
                index=live.history.blocks,
                choice=live.choice,
                drafted=each.drafted,
                accepted=each.accepted,
                emitted=len(each.tokens),
                requests=step.requests,
                rows=step.rows,
                draft_s=live.draft_s,
                verify_s=step.seconds,
                features=live.features,
            )
        self.policy.observe([(self._live[each].history, block) for each, block in blocks.items()])
        for request_id, block in blocks.items():
            live = self._live[request_id]
            live.choice = None
            live.history.observe(block, verified[request_id].tokens)
            if live.ngrams is not None:
                live.ngrams.extend(verified[request_id].tokens)
        return blocks

    def choose(self, rooms: Mapping[str, int]) -> int:
        """Chooses the next block of some requests.

        Args:
            rooms: by request, the draft tokens that fit.

        Returns:
            Tokens that the neural drafter is to draft: the deepest wish for it; 0: it is not wanted.
        """
        self._chosen = list(rooms)
        if not rooms:
            return 0
        candidates = {request_id: self._candidate(self._live[request_id], room) for request_id, room in rooms.items()}
        choices = self.policy.choose(list(candidates.values()))
        for (request_id, candidate), choice in zip(candidates.items(), choices, strict=True):
            live = self._live[request_id]
            live.choice, live.draft_s = choice, 0.0
            if self.config.record is not None:
                # A copy: the history goes on while the block is verified.
                live.features = live.history.features(choice.expert, candidate.ngram_match, candidate.ngram_found)
        return max((choice.depth for choice in choices if choice.expert.is_neural), default=0)

    def drafts(self, neural: Mapping[str, Sequence[int]], seconds: float) -> dict[str, list[int]]:
        """The drafts of the blocks that were chosen last, by request.

        Args:
            neural: what the neural drafter said, for these requests and others.
            seconds: that it took.
        """
        drafts = {}
        for request_id in self._chosen:
            live = self._live.get(request_id)
            if live is None or live.choice is None:
                continue
            depth = live.choice.depth
            live.draft_s = seconds
            if live.choice.expert is Expert.NGRAM and live.ngrams is not None:
                drafts[request_id] = live.ngrams.draft(depth)
            else:
                drafts[request_id] = list(neural.get(request_id, ())[:depth])
        return drafts

    def _candidate(self, live: _Live, room: int) -> Candidate:
        wish, found = live.wish, NOTHING if live.ngrams is None else live.ngrams.found
        deepest = max(0, min(room, self.config.deepest)) if wish.can_draft else 0
        experts = [
            expert
            for expert in self.config.experts
            if expert is Expert.PLAIN or (deepest and (expert.is_neural or found.match))
        ]
        expert, depth = wish.held_expert, wish.depth
        if not live.history.blocks:
            expert, depth = wish.first_block()
        return Candidate(
            history=live.history,
            experts=experts,
            ngram_found=self.config.deepest if found.match else 0,
            ngram_match=found.match,
            deepest=deepest,
            expert=expert,
            depth=depth,
            is_routed=(expert, depth) != (wish.expert, wish.depth),
            waste_price=wish.waste_price,
        )
