"""One simulated replica: vLLM's scheduling of decodes, prefills and preemptions, in simulated time.

As vLLM 0.32 does it: running requests first, in the order of their start; when a block is missing, the one that started
last is preempted; then waiting ones, if nobody was preempted, as long as their whole prompt fits and the step's tokens
and places last. The gate is the production one.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from services.scheduler.lookahead.answer_lengths import AnswerLengths
from services.scheduler.lookahead.forecast import Claim, PoolState
from services.scheduler.lookahead.gatekeeper import Gatekeeper
from services.scheduler.lookahead.policies import Policy

Clock = Callable[[], float]
"""Seconds of the simulation."""

StepSeconds = Callable[[int, int], float]
"""Of a step, by its decoding requests and the tokens that it prefills."""


@dataclass(slots=True)
class Job:
    """One request. Times in seconds of the simulation."""

    name: str
    arrived_s: float
    prompt: int
    """Tokens."""
    answer: int
    """Tokens after which it ends by itself, unless its limit is lower."""
    max_tokens: int
    """Its limit."""
    generated: int = 0
    computed: int = 0
    """Tokens whose keys and values it has."""
    held: int = 0
    """KV blocks."""
    preemptions: int = 0
    started_s: float | None = None
    ended_s: float | None = None

    @property
    def tokens(self) -> int:
        """Prompt and answer so far."""
        return self.prompt + self.generated

    @property
    def length(self) -> int:
        """Tokens of its whole answer."""
        return min(self.answer, self.max_tokens)

    @property
    def queued_s(self) -> float:
        """From arrival to its first step."""
        return (self.started_s or self.arrived_s) - self.arrived_s

    @property
    def seconds(self) -> float:
        """From arrival to the end."""
        return (self.ended_s or self.arrived_s) - self.arrived_s

    def claim(self) -> Claim:
        """As the gate sees it."""
        return Claim(self.tokens, self.generated, max(0, self.max_tokens - self.generated), held=self.held)


@dataclass(frozen=True, slots=True)
class ReplicaShape:
    """What a replica is made of."""

    blocks: int
    """KV blocks of its pool."""
    block_size: int = 16
    max_num_seqs: int = 16
    token_budget: int = 2048
    """Most tokens of a step."""
    longest: int = 1024
    """Tokens of the model's context."""
    expected_answer_tokens: int = 256


@dataclass(slots=True)
class Totals:
    """Since the start."""

    steps: int = 0
    preemptions: int = 0
    discarded_tokens: int = 0
    forecast_ratios: list[float] = field(default_factory=list)
    """Forecast over observed peak."""


class SimulatedReplica:
    """Steps when it has work; its clock is the simulation's."""

    def __init__(self, shape: ReplicaShape, step_s: StepSeconds, policy: Policy | None, clock: Clock) -> None:
        """``policy``: None is vLLM's own."""
        self.shape = shape
        self.totals = Totals()
        self.running: list[Job] = []
        self.waiting: deque[Job] = deque()
        self._free = shape.blocks
        self._step_s = step_s
        self._clock = clock
        lengths = AnswerLengths(shape.longest, shape.expected_answer_tokens)
        self._keeper = policy and Gatekeeper(policy, lengths, clock, lambda: round(1e9 * clock()))

    @property
    def has_work(self) -> bool:
        """Somebody runs or waits."""
        return bool(self.running or self.waiting)

    @property
    def used(self) -> int:
        """KV blocks that are not free."""
        return self.shape.blocks - self._free

    def submit(self, job: Job) -> None:
        """A request arrives."""
        if self._keeper:
            self._keeper.pace.arrived()
        self.waiting.append(job)

    def plan(self) -> tuple[dict[str, tuple[Job, int]], float]:
        """The next step: tokens by request, and the seconds that it takes. Its results come with ``finish``."""
        places = self._places()
        tokens: dict[str, tuple[Job, int]] = {}
        budget, preempted = self.shape.token_budget, False
        index = 0
        while index < len(self.running) and budget > 0:
            job = self.running[index]
            count = min(job.tokens - job.computed, budget)
            while not self._allocate(job, job.computed + count):
                preempted = True
                if self._preempt() is job:
                    break
            else:
                tokens[job.name] = job, count
                budget -= count
            index += 1
        if not preempted:
            self._start(places, budget, tokens)
        decodes = sum(1 for job, count in tokens.values() if count == 1 and job.generated)
        prefilled = sum(count for _, count in tokens.values()) - decodes
        return tokens, self._step_s(decodes, prefilled)

    def finish(self, step: dict[str, tuple[Job, int]]) -> list[Job]:
        """The step's results; returns who has ended."""
        self.totals.steps += 1
        decoding = {name for name, (job, _) in step.items() if job.generated}
        gained, ended = 0, []
        for job, count in step.values():
            job.computed += count
            if job.computed < job.tokens:
                continue
            job.generated += 1
            gained += job.name in decoding
            if job.generated >= job.length:
                ended.append(job)
        for job in ended:
            self._end(job)
        if self._keeper:
            everywhere = sum(1 for job in self.running if job.generated > 1)
            rows = len(decoding)
            self._keeper.pace.stepped(sum(count for _, count in step.values()), rows, max(rows, everywhere), gained)
            if (ratio := self._keeper.stepped(self.used)) is not None:
                self.totals.forecast_ratios.append(ratio)
            if not self.has_work:
                self._keeper.idle()
        return ended

    def _places(self) -> int:
        """Requests that may start."""
        free = self.shape.max_num_seqs - len(self.running)
        if self._keeper is None:
            return free
        if not self._keeper.wants_forecast(may_start=bool(self.waiting) and free > 0):
            return 0
        decisions = self._keeper.admissible(
            PoolState(self.shape.blocks, self.used, self.shape.block_size),
            [job.claim() for job in self.running],
            ((job.name, job.claim()) for job in self.waiting),
            free,
            self.shape.token_budget,
        )
        return sum(decision.reason.admits for decision in decisions)

    def _start(self, places: int, budget: int, tokens: dict[str, tuple[Job, int]]) -> None:
        while places > 0 and budget > 0 and self.waiting:
            job = self.waiting[0]
            if -(-job.tokens // self.shape.block_size) > self._free:
                return
            count = min(job.tokens, budget)
            self._allocate(job, count)
            self.running.append(self.waiting.popleft())
            tokens[job.name] = job, count
            budget, places = budget - count, places - 1
            job.started_s = self._clock() if job.started_s is None else job.started_s
            if self._keeper:
                self._keeper.started(job.name, job.claim())

    def _allocate(self, job: Job, tokens: int) -> bool:
        more = -(-tokens // self.shape.block_size) - job.held
        if more > self._free:
            return False
        self._free -= max(0, more)
        job.held += max(0, more)
        return True

    def _preempt(self) -> Job:
        job = self.running.pop()
        self.totals.preemptions += 1
        self.totals.discarded_tokens += job.computed
        self._release(job)
        job.computed = 0
        job.preemptions += 1
        self.waiting.appendleft(job)
        return job

    def _end(self, job: Job) -> None:
        self.running.remove(job)
        self._release(job)
        job.ended_s = self._clock()
        if self._keeper:
            self._keeper.lengths.ended(job.generated, by_itself=job.answer <= job.max_tokens)
            self._keeper.forget([job.name])

    def _release(self, job: Job) -> None:
        self._free += job.held
        job.held = 0
