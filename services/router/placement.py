"""Puts one request on one replica: candidates, an expert, a draw, reservation, submission.

1. Candidates serve the model and have a free place. None at all: UNAVAILABLE; none with a place: OVERLOAD.
2. Who drafts is chosen, and only replicas that have that expert stay, if there are any.
3. The ledger is asked which of them have the prompt's beginning cached, where there is a choice.
4. Two are drawn at random and those join them; the one with the best score first: its forecast KV pressure, less the
   share of the prompt that it need not compute.
5. KV blocks are reserved on the first, else on the next.
6. Refused on all, memory is full: the request still goes to the best one, unreserved, since its bounded queue
   decides whether it may wait. Without an answer from the ledger it goes unreserved, too.
"""

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from opentelemetry import trace
from opentelemetry.trace import SpanKind

from services.common import trace_names as names
from services.common.errors import RequestEndedError, overloaded, unavailable
from services.common.expert import Expert
from services.common.ledger import LedgerReplica, forecast_pressure
from services.common.prefix_hash import prefix_hashes
from services.common.types import ExpertChoice, ReplicaState, Submission
from services.router.expert_chooser import ExpertChooser
from services.router.kv_estimate import blocks_needed
from services.router.picker import Candidate, draw
from services.router.replica_pool import ReplicaPool
from services.router.replica_session import ReplicaSession, SubmittedRequest
from services.router.reservations import Reservations

MOST_PREFIXES = 256
"""KV blocks of a prompt that are looked for in the ledger; longer prompts differ before."""

PRESSURES = "forerun.route.pressures"
"""Span attribute: ``replica=pressure`` of each replica drawn, the best first."""


class LedgerReadings(Protocol):
    """What placement reads of the ledger, without waiting."""

    @property
    def replicas(self) -> Mapping[str, LedgerReplica]:
        """The last view, however old."""
        ...

    @property
    def reachable(self) -> bool:
        """The last exchange with the ledger went well."""
        ...

    async def prefix_holders(self, names: Sequence[str]) -> Mapping[str, int]:
        """Replicas that have the longest prefixes of a prompt cached, with the blocks of it; never raises."""
        ...


@dataclass(frozen=True, slots=True)
class PlacementOptions:
    """The part of the configuration that placement needs."""

    expected_output_tokens: int
    retry_after_ms: int
    prefix_weight: float = 0.0
    """What a prompt that is cached as a whole is worth, as a share of a replica's KV blocks; 0: nobody looks."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A request on its replica."""

    submitted: SubmittedRequest
    reservation_id: str
    """Empty: none."""
    expert: ExpertChoice | None
    """Who drafts; None: the replica chooses."""


class Placement:
    """Chooses and submits; keeps nothing of the request."""

    def __init__(
        self,
        pool: ReplicaPool,
        readings: LedgerReadings | None,
        reservations: Reservations,
        experts: ExpertChooser,
        options: PlacementOptions,
        tracer: trace.Tracer,
        rng: random.Random | None = None,
    ) -> None:
        self._pool = pool
        self._readings = readings
        self._reservations = reservations
        self._experts = experts
        self._options = options
        self._tracer = tracer
        self._rng = rng or random.Random()

    async def place(self, submission: Submission, model: str, tried: Collection[str], parent: trace.Span) -> Placed:
        """The submitted request, on a replica that is not in ``tried``.

        Raises ``RequestEndedError`` when no replica can take it.
        """
        context = trace.set_span_in_context(parent)
        with self._tracer.start_as_current_span(names.SPAN_ROUTE, context, kind=SpanKind.INTERNAL) as span:
            sessions = self._sessions(model, tried, span)
            expert = self._experts.choose(submission, sessions, span)
            sessions = _with_expert(sessions, expert)
            holders = await self._prefix_holders(sessions, submission)
            drawn = draw(
                sessions,
                lambda session: Candidate(
                    session, self._pressure(session, submission), self._saved(session, submission, holders)
                ),
                self._rng,
                holders,
            )
            span.set_attribute(PRESSURES, [f"{one.replica.replica_id}={one.pressure:.4f}" for one in drawn])
            chosen, reservation_id = await self._reserve(drawn, submission)
            blocks = self._blocks(submission, chosen)
            span.set_attribute(names.REPLICA_ID, chosen.replica_id)
            span.set_attribute(names.PREFIX_BLOCKS, holders.get(chosen.replica_id, 0))
            span.set_attribute(names.RESERVED_BLOCKS, blocks if reservation_id else 0)
            routed = replace(submission, reservation_id=reservation_id, expert=self._experts.routed(expert))
            try:
                return Placed(chosen.submit(routed, blocks), reservation_id, expert)
            except RequestEndedError:
                self._reservations.release(reservation_id)
                raise

    def can_take(self, model: str, tried: Collection[str]) -> bool:
        """Whether some replica outside ``tried`` could take a request now."""
        return bool(self._pool.candidates(model, tried))

    def _sessions(self, model: str, tried: Collection[str], span: trace.Span) -> list[ReplicaSession]:
        sessions = self._pool.candidates(model, tried)
        span.set_attribute(names.CANDIDATES, len(sessions))
        span.set_attribute(names.LEDGER_REACHABLE, self._readings is not None and self._readings.reachable)
        if not sessions:
            if any(session.state is ReplicaState.SERVING for session in self._pool.sessions.values()):
                raise overloaded("all replicas are full", self._options.retry_after_ms)
            raise unavailable("no replica is serving; try again later", self._options.retry_after_ms)
        return sessions

    def _pressure(self, session: ReplicaSession, submission: Submission) -> float:
        """The ledger's forecast, or what this router alone has put there where that is more (the ledger's figures
        are some moments old) or where the ledger does not know the replica."""
        blocks = self._blocks(submission, session)
        total = session.info.total_blocks if session.info is not None else 0
        own = (session.own_blocks + blocks) / total if total else float(session.in_flight)
        reading = None if self._readings is None else self._readings.replicas.get(session.replica_id)
        return own if reading is None else max(own, forecast_pressure(reading, blocks))

    async def _prefix_holders(self, sessions: list[ReplicaSession], submission: Submission) -> Mapping[str, int]:
        """Blocks of the prompt that replicas have cached, by replica id, as far as the ledger knows."""
        if self._readings is None or not self._options.prefix_weight or len(sessions) < 2:
            return {}
        # Names depend on the block size: replicas of another one than the first's are not looked for.
        block_size = next((session.info.block_size for session in sessions if session.info is not None), 0)
        if not block_size:
            return {}
        return await self._readings.prefix_holders(
            prefix_hashes(submission.prompt_token_ids, block_size, MOST_PREFIXES)
        )

    def _saved(self, session: ReplicaSession, submission: Submission, holders: Mapping[str, int]) -> float:
        if session.info is None:
            return 0.0
        tokens = holders.get(session.replica_id, 0) * session.info.block_size
        return self._options.prefix_weight * min(1.0, tokens / len(submission.prompt_token_ids))

    async def _reserve(
        self, drawn: list[Candidate[ReplicaSession]], submission: Submission
    ) -> tuple[ReplicaSession, str]:
        for candidate in drawn:
            blocks = self._blocks(submission, candidate.replica)
            reservation_id = await self._reservations.reserve(candidate.replica.replica_id, blocks)
            if reservation_id is not None:
                return candidate.replica, reservation_id
        return drawn[0].replica, ""

    def _blocks(self, submission: Submission, session: ReplicaSession) -> int:
        if session.info is None:
            return 1
        prompt_tokens = len(submission.prompt_token_ids)
        return blocks_needed(prompt_tokens, submission.sampling, session.info, self._options.expected_output_tokens)


def _with_expert(sessions: list[ReplicaSession], choice: ExpertChoice | None) -> list[ReplicaSession]:
    """Those that have the expert; all, where none has: they serve the request plainly, or as they choose."""
    if choice is None or choice.expert in ("", Expert.PLAIN):
        return sessions
    return [each for each in sessions if each.info is not None and choice.expert in each.info.experts] or sessions
