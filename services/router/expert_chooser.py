"""``ExpertRouter`` among replicas: what it reads of them, and what metrics and spans show of it."""

import time
from collections.abc import Sequence

from opentelemetry import trace

from services.common import trace_names as names
from services.common.types import ExpertChoice, Submission
from services.router.apex.expert_router import ExpertRouter
from services.router.metrics import RouterMetrics
from services.router.replica_session import ReplicaSession

SHOWN_SCORES = 8
"""In a span; the reply has all."""


class ExpertChooser:
    """One per router."""

    def __init__(self, router: ExpertRouter, metrics: RouterMetrics) -> None:
        self._router = router
        self._metrics = metrics
        self.routed = router.routed

    def choose(
        self, submission: Submission, sessions: Sequence[ReplicaSession], span: trace.Span
    ) -> ExpertChoice | None:
        """Who drafts; None: the replica chooses. ``sessions``: replicas that could take the request now."""
        if not self._router.has_say(submission.sampling):
            return None  # without a look at what may be a large fleet
        began = time.perf_counter()
        infos = {session.info.kind: session.info for session in sessions if session.info is not None}
        choice = self._router.choose(submission, list(infos.values()))
        if choice is not None:
            self._metrics.expert_chosen(choice, time.perf_counter() - began)
            _describe(span, choice)
        return choice


def _describe(span: trace.Span, choice: ExpertChoice) -> None:
    span.set_attribute(names.ROUTED_EXPERT, choice.expert)
    span.set_attribute(names.ROUTED_REASON, choice.reason)
    span.set_attribute(names.ROUTED_PROFILE, choice.profile)
    if choice.first_draft_tokens is not None:
        span.set_attribute(names.ROUTED_DEPTH, choice.first_draft_tokens)
    if choice.scores:
        best = choice.scores[:SHOWN_SCORES]
        span.set_attribute(
            names.ROUTED_SCORES, [f"{each.expert}:{each.draft_tokens}={each.utility:.3f}" for each in best]
        )
