"""Any order of publishing, reserving, admitting, crashing, forgetting and waiting leaves a true ledger.

The scripts run in a real Redis. Time passes by moving every expiry in Redis to the past, so that a lease of a minute
runs out within a millisecond, at a moment which the model knows.
"""

import asyncio
import itertools
from dataclasses import dataclass, field
from typing import TypeVar

import pytest
import redis
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from services.common.ledger import EngineState, LedgerRow, LedgerUnavailableError, LedgerView, ReplicaTruth
from services.common.ledger.check import compare
from services.common.ledger.connection import connect_async
from services.common.ledger.reading import LedgerReader
from services.common.ledger.replica_entry import GenerationFencedError, ReplicaEntry
from services.common.ledger.schema import FENCE_LEASES
from tests.integration.ledger_support import quick, totals
from tests.support.redis_server import RedisServer

LEASE = 60
REPLICAS = ["r0", "r1"]
TOTAL = 20

replica_ids = st.sampled_from(REPLICAS)
block_counts = st.integers(1, TOTAL + 1)
choices = st.integers(0, 1000)
T = TypeVar("T")


@dataclass
class Engine:
    """A replica's process: its queue, its requests, and the pen to the ledger."""

    generation: int
    entry: ReplicaEntry
    held: dict[str, int] = field(default_factory=dict)
    waiting: dict[str, int] = field(default_factory=dict)
    settled: list[str] = field(default_factory=list)
    published_waiting: set[str] = field(default_factory=set)
    renewed_at: int = 0

    def state(self) -> EngineState:
        held = sum(self.held.values())
        counts = totals(TOTAL, held, len(self.held), len(self.waiting))
        return EngineState(counts, dict(self.held), dict(self.waiting))


@dataclass
class Promise:
    """A reservation as the ledger should have it."""

    blocks: int
    expires: int


@dataclass
class Entry:
    """A replica as the ledger should have it."""

    generation: int
    state: EngineState
    expires: int


class LedgerMachine(RuleBasedStateMachine):
    """The ledger in Redis beside a model of it in dictionaries."""

    server: RedisServer

    def __init__(self) -> None:
        super().__init__()
        self.config = quick(self.server.url, lease_s=LEASE, refresh_interval_s=60, command_timeout_s=20)
        self.redis = redis.Redis.from_url(self.server.url, decode_responses=True)
        self.redis.flushall()
        self.now = 0
        self.ids = itertools.count()
        self.engines: dict[str, Engine] = {}
        self.left_over: list[tuple[str, Engine]] = []
        self.entries: dict[str, Entry] = {}
        self.promises: dict[str, dict[str, Promise]] = {replica_id: {} for replica_id in REPLICAS}
        self.fences: dict[str, tuple[int, int]] = {}
        self.on_the_way: dict[str, tuple[str, int]] = {}
        self.loop = asyncio.new_event_loop()
        self.client = connect_async(self.config, max_connections=1)
        self.reader = LedgerReader(self.client, self.config.fleet)
        self.view = LedgerView(self.config)
        self.loop.run_until_complete(self.view.start())

    def teardown(self) -> None:
        """The quiet end: all requests are over, the dead are expired, and nothing is left in the ledger."""
        for engine in self.engines.values():
            engine.settled += engine.waiting
            engine.held.clear()
            engine.waiting.clear()
        self.wait(LEASE // 10, heartbeats=True)
        truths = [
            ReplicaTruth(replica_id, engine.generation, TOTAL, TOTAL, 0, 0, {})
            for replica_id, engine in self.engines.items()
        ]
        try:
            assert compare(self.rows(), truths) == []
        finally:
            self.loop.run_until_complete(self.view.close())
            self.loop.run_until_complete(self.client.aclose())
            self.loop.close()
            self.redis.close()

    # The replicas' side.

    @initialize(held=st.lists(st.integers(1, 5), max_size=3))
    def replicas_serve(self, held: list[int]) -> None:
        for replica_id in REPLICAS:
            self.start(replica_id)
            self.engines[replica_id].held.update({f"first {index}": blocks for index, blocks in enumerate(held)})
            self.publish(replica_id)

    @rule(replica_id=replica_ids)
    def publish(self, replica_id: str) -> None:
        if replica_id in self.engines:
            self.write(replica_id, self.engines[replica_id])

    def publish_if(self, published: bool, replica_id: str) -> None:
        if published:
            self.publish(replica_id)

    def start(self, replica_id: str) -> None:
        generation = next(self.ids)
        entry = ReplicaEntry(self.redis, self.config, replica_id, "h:1", generation, clock=lambda: float(self.now))
        self.engines[replica_id] = Engine(generation, entry)

    @rule(replica_id=replica_ids, published=st.booleans())
    def restart(self, replica_id: str, published: bool) -> None:
        """A replica starts again; its last process is dead, or hangs and may write later."""
        self.crash(replica_id)
        self.start(replica_id)
        self.publish_if(published, replica_id)

    @rule(choice=choices)
    def a_left_over_writes(self, choice: int) -> None:
        if self.left_over:
            self.write(*self.left_over[choice % len(self.left_over)])

    def crash(self, replica_id: str) -> None:
        engine = self.engines.pop(replica_id, None)
        if engine is not None:
            self.left_over.append((replica_id, engine))

    def retire(self, replica_id: str) -> None:
        engine = self.engines.pop(replica_id, None)
        if engine is not None and not self.is_fenced(replica_id, engine):
            engine.entry.retire()
            self.entries.pop(replica_id, None)
            self.promises[replica_id].clear()

    def a_left_over_retires(self) -> None:
        for replica_id, engine in self.left_over:
            if self.is_fenced(replica_id, engine):
                with pytest.raises(GenerationFencedError):
                    engine.entry.retire()

    def write(self, replica_id: str, engine: Engine) -> None:
        state = engine.state()
        if self.is_fenced(replica_id, engine):
            with pytest.raises(GenerationFencedError):
                engine.entry.write(state, engine.settled)
            return
        whole = engine.entry.write(state, engine.settled)
        self.sweep()
        promises = self.promises[replica_id]
        for reservation_id in {*engine.settled, *engine.published_waiting} - state.waiting.keys():
            promises.pop(reservation_id, None)
        renew = whole or self.now - engine.renewed_at >= LEASE / 4
        for reservation_id, blocks in state.waiting.items():
            if renew or reservation_id not in engine.published_waiting:
                promised = promises[reservation_id].blocks if reservation_id in promises else blocks
                promises[reservation_id] = Promise(promised, self.now + LEASE)
        if renew:
            engine.renewed_at = self.now
        engine.settled.clear()
        engine.published_waiting = set(state.waiting)
        self.entries[replica_id] = Entry(engine.generation, state, self.now + LEASE)
        self.fences[replica_id] = (engine.generation, self.now + LEASE * FENCE_LEASES)

    def is_fenced(self, replica_id: str, engine: Engine) -> bool:
        generation, expires = self.fences.get(replica_id, (-1, 0))
        return expires > self.now and engine.generation < generation

    # The life of requests.

    @rule(replica_id=replica_ids, blocks=block_counts, arrives=st.booleans(), published=st.booleans())
    def reserve(self, replica_id: str, blocks: int, arrives: bool, published: bool) -> None:
        reservation_id = f"q{next(self.ids)}"
        self.ask(replica_id, reservation_id, blocks)
        if arrives and reservation_id in self.on_the_way and replica_id in self.engines:
            self.engines[replica_id].waiting[reservation_id] = blocks
            self.publish_if(published, replica_id)

    @rule(replica_id=replica_ids, too_many=st.booleans())
    def reserve_the_last_block(self, replica_id: str, too_many: bool) -> None:
        self.sweep()
        self.ask(replica_id, f"q{next(self.ids)}", max(1, self.room(replica_id)) + too_many)

    @rule(choice=choices, blocks=block_counts)
    def reserve_again(self, choice: int, blocks: int) -> None:
        """A repeated call, or one that changed its mind about the blocks."""
        if self.on_the_way:
            reservation_id, (replica_id, _) = pick(self.on_the_way, choice)
            self.ask(replica_id, reservation_id, blocks)

    def ask(self, replica_id: str, reservation_id: str, blocks: int) -> None:
        self.sweep()
        known, room = replica_id in self.entries, self.room(replica_id)
        promises = self.promises[replica_id]
        call = self.view.reserve(replica_id, reservation_id, blocks)
        if not known:
            with pytest.raises(LedgerUnavailableError, match="no live replica"):
                self.loop.run_until_complete(call)
            return
        before = promises[reservation_id].blocks if reservation_id in promises else 0
        expected = blocks <= before or room >= blocks - before
        assert self.loop.run_until_complete(call) == expected
        if expected:
            promises[reservation_id] = Promise(blocks, self.now + LEASE)
            self.on_the_way[reservation_id] = (replica_id, blocks)

    def room(self, replica_id: str) -> int:
        entry = self.entries.get(replica_id)
        promised = sum(promise.blocks for promise in self.promises[replica_id].values())
        return entry.state.totals.free - promised if entry else 0

    @rule(choice=choices)
    def release(self, choice: int) -> None:
        if self.on_the_way:
            reservation_id, (replica_id, _) = pick(self.on_the_way, choice)
            del self.on_the_way[reservation_id]
            self.loop.run_until_complete(self.view.release(reservation_id))
            self.promises[replica_id].pop(reservation_id, None)

    @rule(choice=choices)
    def arrive(self, choice: int) -> None:
        if self.on_the_way:
            reservation_id, (replica_id, blocks) = pick(self.on_the_way, choice)
            if replica_id in self.engines:
                self.engines[replica_id].waiting[reservation_id] = blocks

    @rule(replica_id=replica_ids, blocks=block_counts)
    def arrive_unreserved(self, replica_id: str, blocks: int) -> None:
        if replica_id in self.engines:
            self.engines[replica_id].waiting[f"q{next(self.ids)}"] = blocks

    @rule(replica_id=replica_ids, choice=choices, published=st.booleans())
    def admit(self, replica_id: str, choice: int, published: bool) -> None:
        engine = self.engines.get(replica_id)
        if engine is None or not engine.waiting:
            return
        reservation_id, blocks = pick(engine.waiting, choice)
        if blocks <= TOTAL - sum(engine.held.values()):
            del engine.waiting[reservation_id]
            engine.held[f"request of {reservation_id}"] = blocks
            engine.settled.append(reservation_id)
            self.publish_if(published, replica_id)

    @rule(replica_id=replica_ids, choice=choices, published=st.booleans())
    def preempt(self, replica_id: str, choice: int, published: bool) -> None:
        engine = self.engines.get(replica_id)
        if engine is not None and engine.held:
            request, blocks = pick(engine.held, choice)
            del engine.held[request]
            engine.waiting[request] = blocks
            self.publish_if(published, replica_id)

    @rule(replica_id=replica_ids, choice=choices, published=st.booleans())
    def finish(self, replica_id: str, choice: int, published: bool) -> None:
        engine = self.engines.get(replica_id)
        if engine is not None and engine.held:
            del engine.held[pick(engine.held, choice)[0]]
            self.publish_if(published, replica_id)

    @rule(replica_id=replica_ids, choice=choices, published=st.booleans())
    def abort_in_queue(self, replica_id: str, choice: int, published: bool) -> None:
        engine = self.engines.get(replica_id)
        if engine is not None and engine.waiting:
            reservation_id = pick(engine.waiting, choice)[0]
            del engine.waiting[reservation_id]
            engine.settled.append(reservation_id)
            self.publish_if(published, replica_id)

    # The world.

    @rule(replica_id=replica_ids, kind=st.sampled_from(["replica", "retires", "left-over", "router", "redis"]))
    def disaster(self, replica_id: str, kind: str) -> None:
        match kind:
            case "replica":
                self.crash(replica_id)
            case "retires":
                self.retire(replica_id)
            case "left-over":
                self.a_left_over_retires()
            case "router":
                # Nobody releases what it reserved; what had not arrived never will.
                self.on_the_way.clear()
            case "redis":
                self.redis.flushall()
                self.entries.clear()
                self.fences.clear()
                self.promises = {replica_id: {} for replica_id in REPLICAS}

    @rule(tens=st.sampled_from([1, 2, 3, 6]), heartbeats=st.booleans())
    def wait(self, tens: int, heartbeats: bool) -> None:
        for _ in range(tens):
            self.pass_ten_seconds()
            if heartbeats:
                for replica_id in list(self.engines):
                    self.publish(replica_id)

    def pass_ten_seconds(self) -> None:
        self.now += 10
        with self.redis.pipeline() as pipeline:
            for key in self.redis.scan_iter("forerun:*"):
                remaining_ms = self.redis.pttl(key) - 10_000
                pipeline.pexpire(key, max(0, remaining_ms))
                if remaining_ms > 0 and self.redis.type(key) == "zset":
                    for member, _ in self.redis.zscan_iter(key):
                        pipeline.zincrby(key, -10_000, member)
            pipeline.execute()
        self.sweep()

    def sweep(self) -> None:
        self.entries = {key: entry for key, entry in self.entries.items() if entry.expires > self.now}
        for replica_id, promises in self.promises.items():
            self.promises[replica_id] = {key: it for key, it in promises.items() if it.expires > self.now}

    def rows(self) -> list[LedgerRow]:
        return self.loop.run_until_complete(self.reader.read(detailed=True))

    @invariant()
    def the_ledger_is_what_the_model_says(self) -> None:
        rows = {row.replica.replica_id: row for row in self.rows()}
        assert rows.keys() == self.entries.keys()
        for replica_id, entry in self.entries.items():
            row, promises = rows[replica_id], self.promises[replica_id]
            replica, counts = row.replica, entry.state.totals
            assert (replica.generation, replica.total, replica.free) == (entry.generation, counts.total, counts.free)
            assert (replica.held, replica.running, replica.waiting) == (counts.held, counts.running, counts.waiting)
            assert row.held_requests == entry.state.held
            assert {it.reservation_id: it.blocks for it in row.reservations} == {
                key: promise.blocks for key, promise in promises.items()
            }
            assert replica.reserved == sum(promise.blocks for promise in promises.values()) >= 0


def pick(mapping: dict[str, T], choice: int) -> tuple[str, T]:
    """One of the items."""
    return list(mapping.items())[choice % len(mapping)]


def test_the_ledger_stays_true_in_any_order_of_events(shared_redis_server: RedisServer) -> None:
    class Machine(LedgerMachine):
        server = shared_redis_server

    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=80,
            stateful_step_count=40,
            deadline=None,
            # Shrinking replays the failure hundreds of times, for longer than a test may take.
            phases=[Phase.explicit, Phase.reuse, Phase.generate],
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
        ),
    )
