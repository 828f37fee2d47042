"""Replicas, ledger and pool of a router's unit tests: scripted, in memory, no network."""

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from opentelemetry import trace

from services.common.errors import RequestEndedError, unavailable
from services.common.ledger import LedgerReplica, LedgerUnavailableError
from services.common.outcome import Outcome
from services.common.types import (
    ChoiceEnd,
    Delta,
    Finished,
    ReplicaInfo,
    ReplicaState,
    SamplingOptions,
    Submission,
    Usage,
)
from services.router.admission import Admission
from services.router.apex.expert_router import ExpertRouter
from services.router.event_queue import EventQueue
from services.router.expert_chooser import ExpertChooser
from services.router.generate import Deadlines, GenerateCall
from services.router.metrics import RouterMetrics
from services.router.placement import Placement, PlacementOptions
from services.router.rendering import TokensOnly
from services.router.request import Edge, RouterEvent, RouterRequest, TokensPrompt
from services.router.reservations import Reservations

VOCAB_SIZE = 1000
MAX_MODEL_LEN = 256


def replica_info(replica_id: str, **changes: object) -> ReplicaInfo:
    values: dict[str, object] = {
        "replica_id": replica_id,
        "generation": 1,
        "model_names": ("tiny",),
        "model": "tiny-files",
        "max_model_len": MAX_MODEL_LEN,
        "vocab_size": VOCAB_SIZE,
        "dtype": "float32",
        "pipeline_stages": 1,
        "tensor_parallel_ranks": 1,
        "total_blocks": 100,
        "block_size": 16,
        "max_running_requests": 4,
        "max_waiting_requests": 4,
    }
    return ReplicaInfo(**(values | changes))  # type: ignore[arg-type]


class FakeSubmitted:
    """What a session's ``submit`` returns; the test puts events into ``queue``."""

    def __init__(self, session: "FakeSession", submission: Submission) -> None:
        self.replica_id = session.replica_id
        self.submission = submission
        self.queue = EventQueue()
        self.closed = 0
        self._session = session

    async def events(self) -> list[RouterEvent]:
        return list(await self.queue.get())

    def fail(self, error: RequestEndedError) -> None:
        self.queue.fail(error)

    def close(self) -> None:
        self.closed += 1
        self._session.live.pop(self.submission.request_id, None)


class FakeSession:
    """A replica. ``on_submit`` answers each submission, or ``submissions`` are answered by the test."""

    def __init__(
        self,
        replica_id: str,
        on_submit: Callable[[FakeSubmitted], None] = lambda _: None,
        state: ReplicaState = ReplicaState.SERVING,
        **info: object,
    ) -> None:
        self.replica_id = replica_id
        self.address = f"{replica_id}.test:1"
        self.info = replica_info(replica_id, **info)
        self.state = state
        self.own_blocks = 0
        self.has_slot = state is ReplicaState.SERVING
        self.submissions: list[FakeSubmitted] = []
        self.live: dict[str, FakeSubmitted] = {}
        self._on_submit = on_submit

    @property
    def in_flight(self) -> int:
        return len(self.live)

    def submit(self, submission: Submission, blocks: int) -> FakeSubmitted:
        if self.state is not ReplicaState.SERVING:
            raise unavailable(f"replica {self.replica_id} is {self.state.value}")
        submitted = FakeSubmitted(self, submission)
        self.submissions.append(submitted)
        self.live[submission.request_id] = submitted
        self._on_submit(submitted)
        return submitted


class FakePool:
    """The pool's questions, over given sessions."""

    def __init__(self, *sessions: FakeSession) -> None:
        self.sessions = {session.replica_id: session for session in sessions}

    @property
    def is_serving(self) -> bool:
        return any(session.state is ReplicaState.SERVING for session in self.sessions.values())

    def candidates(self, model: str, exclude: Collection[str] = ()) -> list[FakeSession]:
        return [one for one in self.sessions.values() if one.has_slot and one.replica_id not in exclude]

    def resolve_model(self, model: str) -> tuple[str, ReplicaInfo]:
        for session in self.sessions.values():
            if session.state is ReplicaState.SERVING:
                return model or "tiny", session.info
        raise unavailable("no replica is serving")


@dataclass
class FakeLedger:
    """Reservations in memory; ``free`` blocks by replica, absent: unlimited."""

    free: dict[str, int] = field(default_factory=dict)
    replicas: dict[str, LedgerReplica] = field(default_factory=dict)
    reachable: bool = True
    fails: bool = False
    held: dict[str, tuple[str, int]] = field(default_factory=dict)
    asked: list[tuple[str, int]] = field(default_factory=list)
    prefixes: dict[str, int] = field(default_factory=dict)
    """Blocks of any prompt that replicas have cached."""

    async def prefix_holders(self, names: Sequence[str]) -> dict[str, int]:
        return {replica_id: min(blocks, len(names)) for replica_id, blocks in self.prefixes.items()}

    async def reserve(self, replica_id: str, reservation_id: str, blocks: int) -> bool:
        self.asked.append((replica_id, blocks))
        await asyncio.sleep(0)
        if self.fails:
            raise LedgerUnavailableError("away")
        taken = sum(blocks for where, blocks in self.held.values() if where == replica_id)
        if taken + blocks > self.free.get(replica_id, 10**9):
            return False
        self.held[reservation_id] = (replica_id, blocks)
        return True

    async def release(self, reservation_id: str) -> None:
        self.held.pop(reservation_id, None)


def ledger_replica(replica_id: str, **changes: object) -> LedgerReplica:
    values: dict[str, object] = {
        "replica_id": replica_id,
        "generation": 1,
        "address": f"{replica_id}.test:1",
        "total": 100,
        "free": 100,
        "held": 0,
        "reserved": 0,
        "forecast_peak": 0,
        "running": 0,
        "waiting": 0,
        "heartbeat_age_s": 0.0,
    }
    return LedgerReplica(**(values | changes))  # type: ignore[arg-type]


@dataclass
class CallUnderTest:
    """A domain call over fakes, and what it counts."""

    call: GenerateCall
    metrics: RouterMetrics
    admission: Admission
    reservations: Reservations
    placement: Placement

    def outcomes(self) -> dict[str, int]:
        """``forerun_requests_total`` by outcome, zeros left out."""
        return samples(self.metrics, "forerun_requests_total", "outcome")


def samples(metrics: RouterMetrics, name: str, label: str) -> dict[str, int]:
    """Values of one metric by one label, zeros left out."""
    return {
        sample.labels[label]: int(sample.value)
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name == name and sample.value
    }


def build_call(
    pool: FakePool,
    ledger: FakeLedger | None = None,
    *,
    max_requests: int = 100,
    deadlines: Deadlines | None = None,
    tracer: trace.Tracer | None = None,
    experts: ExpertRouter | None = None,
) -> CallUnderTest:
    """The domain call over a fake pool."""
    metrics = RouterMetrics()
    admission = Admission(max_requests, 500)
    reservations = Reservations(ledger)
    tracer = tracer or trace.NoOpTracer()
    options = PlacementOptions(32, 500, prefix_weight=0.5)
    chooser = ExpertChooser(experts or ExpertRouter(None), metrics)
    placement = Placement(pool, ledger, reservations, chooser, options, tracer)  # type: ignore[arg-type]
    call = GenerateCall(
        pool=pool,  # type: ignore[arg-type]
        placement=placement,
        reservations=reservations,
        admission=admission,
        renderer=TokensOnly,
        deadlines=deadlines or Deadlines(),
        metrics=metrics,
        tracer=tracer,
    )
    return CallUnderTest(call, metrics, admission, reservations, placement)


def tokens_request(*token_ids: int, **changes: object) -> RouterRequest:
    values: dict[str, object] = {
        "prompt": TokensPrompt(token_ids or (1, 2, 3)),
        "sampling": SamplingOptions(max_tokens=8),
        "edge": Edge.GRPC,
    }
    return RouterRequest(**(values | changes))  # type: ignore[arg-type]


def delta(text: str = "a", index: int = 0, token_ids: tuple[int, ...] = (7,)) -> Delta:
    return Delta(index, text, token_ids)


def stopped(tokens: int = 1, choices: int = 1) -> Finished:
    ends = tuple(ChoiceEnd(index, Outcome.STOP) for index in range(choices))
    return Finished(Outcome.STOP, ends, Usage(prompt_tokens=3, output_tokens=tokens))


def answers(*events: RouterEvent) -> Callable[[FakeSubmitted], None]:
    """``on_submit`` that puts these events in at once."""

    def on_submit(submitted: FakeSubmitted) -> None:
        for event in events:
            submitted.queue.put(event)  # type: ignore[arg-type]

    return on_submit


def fails(outcome: Outcome, message: str = "no") -> Callable[[FakeSubmitted], None]:
    """``on_submit`` that loses the replica at once, or ends the request."""

    def on_submit(submitted: FakeSubmitted) -> None:
        submitted.queue.fail(RequestEndedError(outcome, message))

    return on_submit
