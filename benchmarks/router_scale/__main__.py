"""``python -m benchmarks.router_scale``: what one router's decision costs, by the size of the fleet.

The router's own pool, sessions, ledger view and placement, with replicas that exist in Redis only; no request is sent.
"""

import argparse
import asyncio
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from statistics import median
from subprocess import DEVNULL, Popen
from tempfile import TemporaryDirectory

import grpc.aio
from opentelemetry import trace
from rich.progress import track

from benchmarks.report import Figure, print_figures, write_report
from services.cli.local_redis import find_redis_server, redis_config
from services.cli.ports import PortPicker
from services.common.ledger import EngineState, LedgerConfig, LedgerView, ReplicaTotals
from services.common.ledger.connection import connect
from services.common.ledger.replica_entry import ReplicaEntry
from services.common.types import ReplicaInfo, ReplicaState, SamplingOptions, Submission
from services.router.apex.expert_router import ExpertRouter
from services.router.change_signal import ChangeSignal
from services.router.expert_chooser import ExpertChooser
from services.router.metrics import RouterMetrics
from services.router.placement import Placement, PlacementOptions
from services.router.replica_pool import ReplicaPool
from services.router.replica_session import ReplicaSession
from services.router.reservations import Reservations

NAME = "router-scale"
MODEL = "m"
BLOCKS = 4000
_NUMBERS = count()


def main() -> None:
    """Measures each size and writes the report."""
    options = _options()
    figures: dict[str, Figure] = {}
    with _redis() as config:
        for size in track(options.replicas, "fleets"):
            figures |= asyncio.run(_measure(config, size, options.decisions, options.rounds))
    print_figures(figures)
    if not options.no_report:
        write_report(NAME, figures, (Path(__file__).parent / "page.md").read_text())


async def _measure(config: LedgerConfig, size: int, decisions: int, rounds: int) -> dict[str, Figure]:
    await asyncio.to_thread(_fill, config, size)
    view = LedgerView(config)
    await view.start()
    reservations = Reservations(view)
    await reservations.start()
    pool = _pool(size)
    options = PlacementOptions(expected_output_tokens=256, retry_after_ms=100)
    tracer = trace.NoOpTracer()
    experts = ExpertChooser(ExpertRouter(None), RouterMetrics())
    local = Placement(pool, view, Reservations(None), experts, options, tracer, random.Random(0))
    reserving = Placement(pool, view, reservations, experts, options, tracer, random.Random(0))
    try:
        return {
            f"router_decision_ms_{size}_replicas": Figure.of(
                [await _decide(pool, local, decisions) for _ in range(rounds)], "ms"
            ),
            f"router_reserved_decision_ms_{size}_replicas": Figure.of(
                [await _decide(pool, reserving, decisions) for _ in range(rounds)], "ms"
            ),
            f"ledger_refresh_ms_{size}_replicas": Figure.of([await _refresh(view) for _ in range(rounds)], "ms"),
        }
    finally:
        await reservations.close()
        await view.close()


async def _decide(pool: ReplicaPool, placement: Placement, decisions: int) -> float:
    """Median milliseconds from a request with token ids to its submission to a replica."""
    prompt = tuple(range(300))
    times = []
    for _ in range(decisions):
        # A name is free again only when its replica has answered the cancellation, and here nobody answers.
        submission = Submission(f"x{next(_NUMBERS)}", prompt, SamplingOptions(max_tokens=200))
        begin = time.perf_counter()
        model, _ = pool.resolve_model(MODEL)
        submitted = (await placement.place(submission, model, (), trace.INVALID_SPAN)).submitted
        times.append(1e3 * (time.perf_counter() - begin))
        submitted.close()
    return median(times)


async def _refresh(view: LedgerView) -> float:
    times = []
    for _ in range(20):
        begin = time.perf_counter()
        await view.refresh()
        times.append(1e3 * (time.perf_counter() - begin))
    return median(times)


def _pool(size: int) -> ReplicaPool:
    """Sessions as they are after their hello."""
    pool = ReplicaPool({}, "router", grpc.aio.insecure_channel, ChangeSignal())
    for number in range(size):
        name = _name(number)
        session = ReplicaSession(name, "127.0.0.1:1", "router", grpc.aio.insecure_channel("127.0.0.1:1"), lambda: None)
        session.info = _info(name)
        session._state = ReplicaState.SERVING
        pool._sessions[name] = session
    return pool


def _info(name: str) -> ReplicaInfo:
    return ReplicaInfo(
        replica_id=name,
        generation=1,
        model_names=(MODEL,),
        model=MODEL,
        max_model_len=8192,
        vocab_size=49152,
        dtype="bfloat16",
        pipeline_stages=1,
        tensor_parallel_ranks=1,
        total_blocks=BLOCKS,
        block_size=16,
        max_running_requests=256,
        max_waiting_requests=1_000_000,
    )


def _fill(config: LedgerConfig, size: int) -> None:
    """The fleet's entries, half full on average."""
    drawn = random.Random(0)
    with connect(config) as client:
        client.flushdb()
        for number in range(size):
            held = drawn.randrange(BLOCKS // 2)
            totals = ReplicaTotals(total=BLOCKS, free=BLOCKS - held, held=held, forecast_peak=held, running=8)
            ReplicaEntry(client, config, _name(number), "127.0.0.1:1", 1).write(EngineState(totals), [])


def _name(number: int) -> str:
    return f"replica-{number}"


@contextmanager
def _redis() -> Iterator[LedgerConfig]:
    """A Redis of its own, with leases that outlast the run."""
    picker = PortPicker()
    address = picker.resolve("127.0.0.1:0")
    picker.release()
    with TemporaryDirectory() as folder:
        file = Path(folder) / "redis.conf"
        file.write_text(redis_config(address, Path(folder), "bench"))
        with Popen([str(find_redis_server(None)), str(file)], stdout=DEVNULL) as process:
            try:
                time.sleep(0.5)
                yield LedgerConfig(url=f"redis://:bench@{address}/0", lease_s=3600.0, refresh_interval_s=60.0)
            finally:
                process.terminate()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.router_scale", description=__doc__)
    parser.add_argument("--replicas", type=int, nargs="+", default=[8, 100, 1000], help="sizes of the fleets")
    parser.add_argument("--decisions", type=int, default=500, help="in each round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-report", action="store_true", help="print the figures, leave the report as it is")
    return parser.parse_args()


if __name__ == "__main__":
    main()
