"""Who drafts for a request, by its prompt, what it asks for and what the replicas can do. Knows no replica by name."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import compress

import numpy as np
import structlog
from numpy.typing import NDArray

from services.common.expert import Expert
from services.common.expert_action import Action
from services.common.expert_profiles import PROFILES, ProfileName
from services.common.types import ExpertChoice, ReplicaInfo, RoutedExpert, SamplingOptions, ScoredExpert, Submission
from services.common.validation import effective_max_tokens
from services.router.apex.prompt_features import prompt_features
from services.router.apex.route_net import RouteNet, RouteOutlook

_log = structlog.get_logger(__name__)


class RouteReason(StrEnum):
    """Why a request has its expert; the values are those of the wire and of metrics."""

    LEARNED = "learned"
    """The model's best score, among what the request leaves open."""
    PINNED = "pinned"
    """The request asked for it; nothing was left to choose, or nothing is known of what was."""
    NOT_POSSIBLE = "not-possible"
    """Its options allow no drafts."""
    FALLBACK = "fallback"
    """The model gave a score that is not finite; the replica chooses."""


@dataclass(frozen=True, slots=True)
class ExpertRouter:
    """One per router; never raises."""

    net: RouteNet | None
    """None: what requests ask for is all there is."""
    profile: ProfileName = "speed"
    """Of requests that name none."""
    first_block_only: bool = False
    """See ``RoutedExpert``."""

    def has_say(self, sampling: SamplingOptions) -> bool:
        """False: ``choose`` gives None, whatever the replicas can do."""
        return self.net is not None or sampling.expert is not None or sampling.draft_tokens is not None

    def choose(self, submission: Submission, replicas: Collection[ReplicaInfo]) -> ExpertChoice | None:
        """None: the replica chooses, or nobody speculates in blocks.

        Args:
            submission: the request.
            replicas: that could take it now; an expert that none of them has is not chosen.
        """
        sampling = submission.sampling
        offers = {(each.experts, each.deepest_draft_tokens) for each in replicas if each.experts}
        if not offers:
            return None
        profile = sampling.profile or self.profile
        if not sampling.allows_drafts:
            return ExpertChoice(Expert.PLAIN, 0, RouteReason.NOT_POSSIBLE, profile)
        info = next(each for each in replicas if each.experts)
        room = effective_max_tokens(len(submission.prompt_token_ids), sampling, info.max_model_len)
        if self.net is not None and not _is_settled(sampling) and self.net.config.vocab_size == info.vocab_size:
            admissible = _admissible(self.net.config.actions, sampling, offers, room)
            if admissible.any():
                return self._learned(self.net, submission, room, admissible)
        return _pinned(sampling, profile)

    def routed(self, choice: ExpertChoice | None) -> RoutedExpert | None:
        """What the replica is told of it; None: nothing that the request does not say itself."""
        if choice is None or choice.reason != RouteReason.LEARNED or choice.first_draft_tokens is None:
            return None
        return RoutedExpert(choice.expert, choice.first_draft_tokens, self.first_block_only)

    def _learned(self, net: RouteNet, submission: Submission, room: int, admissible: NDArray[np.bool_]) -> ExpertChoice:
        sampling, profile = submission.sampling, submission.sampling.profile or self.profile
        outlook = net.outlook(prompt_features(submission.prompt_token_ids, sampling, room, net.embedding))
        utilities = outlook.utility(PROFILES[profile].waste_price)
        if not np.isfinite(utilities).all():
            _log.error("the route model gave a score that is not finite; the replica chooses")
            return ExpertChoice("", None, RouteReason.FALLBACK, profile)
        known = _scores(net.config.actions, utilities.tolist(), outlook)
        scores = sorted(compress(known, admissible), key=lambda each: -each.utility)
        best = scores[0]
        # Depths that lie between those that were trained are asked for as they are.
        depth = best.draft_tokens if sampling.draft_tokens is None else sampling.draft_tokens
        return ExpertChoice(best.expert, depth, RouteReason.LEARNED, profile, tuple(scores))


def _is_settled(sampling: SamplingOptions) -> bool:
    """Nothing is left to choose."""
    is_plain = sampling.expert == Expert.PLAIN or sampling.draft_tokens == 0
    return is_plain or (sampling.expert is not None and sampling.draft_tokens is not None)


def _pinned(sampling: SamplingOptions, profile: str) -> ExpertChoice | None:
    """What the request itself asks for."""
    if sampling.expert is None and sampling.draft_tokens is None:
        return None
    if sampling.expert == Expert.PLAIN or sampling.draft_tokens == 0:
        return ExpertChoice(Expert.PLAIN, 0, RouteReason.PINNED, profile)
    return ExpertChoice(sampling.expert or "", sampling.draft_tokens, RouteReason.PINNED, profile)


def _admissible(
    actions: Collection[Action], sampling: SamplingOptions, offers: Collection[tuple[tuple[str, ...], int]], room: int
) -> NDArray[np.bool_]:
    """By action, whether the request may have it and some replica can do it."""
    deepest: dict[str, int] = {}
    for experts, most in offers:
        deepest |= {expert: max(most, deepest.get(expert, 0)) for expert in experts}
    depth, asked = None, sampling.draft_tokens
    if asked is not None:
        # The nearest depth that was trained speaks for the one that is asked for.
        depth = min((each.depth for each in actions if each.depth), key=lambda known: abs(known - asked), default=0)
    return np.array(
        [
            each.depth <= min(deepest.get(each.expert, -1), room - 1)
            and sampling.expert in (None, each.expert)
            and depth in (None, each.depth)
            for each in actions
        ]
    )


def _scores(actions: Collection[Action], utilities: list[float], outlook: RouteOutlook) -> Iterator[ScoredExpert]:
    known = zip(actions, utilities, outlook.speedup.tolist(), outlook.wasted.tolist(), strict=True)
    return (ScoredExpert(each.expert, each.depth, *values) for each, *values in known)
