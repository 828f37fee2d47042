"""Who drafts, chosen by a router over replicas of different kinds: real processes, fake engines."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.client import ForerunClient, Started
from services.common import trace_names as names
from services.common.expert import Expert
from services.common.expert_action import Action
from services.common.trace_store import StoredSpan, read_trace
from services.common.types import ExpertChoice, Finished, SamplingOptions
from services.router.apex.expert_router import RouteReason
from services.router.apex.route_net import WEIGHTS_NAME
from tests.support.fleet import FAST, PROMPT, Fleet
from tests.support.router_process import RouterProcess
from tests.support.scheduler_process import SchedulerProcess
from tests.support.small_route_net import write_route_net
from tests.support.waiting import eventually

OUTCOMES = {Action(Expert.NGRAM, 2): (1.2, 0.1), Action(Expert.EAGLE3, 4): (1.5, 2.0)}
EAGLE = {"drafter": {"kind": "eagle3", "model": "somewhere"}}


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    started = Fleet(tmp_path)
    yield started
    started.end()


def start(fleet: Fleet, tmp_path: Path) -> tuple[dict[str, SchedulerProcess], RouterProcess]:
    """One replica without a neural drafter and one with, behind a router with a model."""
    model = write_route_net(tmp_path / "router", OUTCOMES, vocab_size=49152)
    replicas = {
        "lookup": fleet.scheduler("lookup", fake=FAST, experts={}),
        "eagle": fleet.scheduler("eagle", fake=FAST, experts=EAGLE),
    }
    telemetry = {"traces_dir": str(tmp_path / "traces")}
    return replicas, fleet.router(replicas, experts={"model": str(model)}, telemetry=telemetry)


async def ask(client: ForerunClient, **sampling: object) -> tuple[Started, Finished]:
    options = SamplingOptions(**({"max_tokens": 20} | sampling))  # type: ignore[arg-type]
    events = [event async for event in client.generate(PROMPT, options)]
    assert isinstance(events[0], Started)
    assert isinstance(events[-1], Finished)
    return events[0], events[-1]


def said(choice: ExpertChoice | None) -> tuple[str, int | None, str]:
    assert choice is not None
    return choice.expert, choice.first_draft_tokens, choice.reason


async def test_a_request_goes_where_its_expert_is_and_on_without_it(fleet: Fleet, tmp_path: Path) -> None:
    replicas, router = start(fleet, tmp_path)
    async with ForerunClient(router.address) as client:
        for _ in range(6):
            started, _ = await ask(client)
            assert (started.replica_id, said(started.expert_choice)) == ("eagle", ("eagle3", 4, RouteReason.LEARNED))
        started, _ = await ask(client, profile="efficient")
        assert said(started.expert_choice)[:2] == ("ngram", 2)
        assert [each.expert for each in started.expert_choice.scores] == ["ngram", "plain", "eagle3"]
        started, _ = await ask(client, expert="eagle3", draft_tokens=7)
        assert (started.replica_id, said(started.expert_choice)) == ("eagle", ("eagle3", 7, RouteReason.PINNED))
        started, _ = await ask(client, min_p=0.2)
        assert said(started.expert_choice) == ("plain", 0, RouteReason.NOT_POSSIBLE)
        replicas["eagle"].end()

        async def goes_on() -> bool:
            after, _ = await ask(client)
            return (after.replica_id, said(after.expert_choice)[0]) == ("lookup", "ngram")

        async with asyncio.timeout(10):
            while not await goes_on():  # noqa: ASYNC110  (seen from outside)
                await asyncio.sleep(0.1)
        # Pinned to what nobody has any more, it is served all the same.
        started, finished = await ask(client, expert="eagle3")
        assert (started.replica_id, finished.outcome.is_success) == ("lookup", True)
        assert said(started.expert_choice) == ("eagle3", None, RouteReason.PINNED)


async def test_a_full_kind_is_passed_over(fleet: Fleet, tmp_path: Path) -> None:
    model = write_route_net(tmp_path / "router", OUTCOMES, vocab_size=49152)
    slow = {"step_time_s": 0.02, "max_num_seqs": 1}
    replicas = {
        "lookup": fleet.scheduler("lookup", fake=FAST, experts={}),
        "eagle": fleet.scheduler("eagle", fake=slow, max_queued_requests=1, experts=EAGLE),
    }
    router = fleet.router(replicas, experts={"model": str(model)})
    async with ForerunClient(router.address) as client:
        busy = [asyncio.create_task(ask(client, max_tokens=300, ignore_eos=True)) for _ in range(2)]

        async def is_full() -> bool:
            loads = {each.replica_id: each.in_flight_requests for each in (await client.list_replicas()).replicas}
            return loads["eagle"] == 2

        async with asyncio.timeout(10):
            while not await is_full():  # noqa: ASYNC110  (seen from outside)
                await asyncio.sleep(0.02)
        started, _ = await ask(client)
        assert (started.replica_id, said(started.expert_choice)[0]) == ("lookup", "ngram")
        for task in busy:
            task.cancel()
        await asyncio.gather(*busy, return_exceptions=True)


async def test_the_span_says_what_was_compared(fleet: Fleet, tmp_path: Path) -> None:
    _, router = start(fleet, tmp_path)
    async with ForerunClient(router.address) as client:
        started, _ = await ask(client)

    def routes() -> list[StoredSpan]:
        return [each for each in read_trace(tmp_path / "traces", started.trace_id) if each.name == names.SPAN_ROUTE]

    await eventually(routes)
    (route,) = routes()
    assert route.attributes[names.ROUTED_EXPERT] == "eagle3"
    assert route.attributes[names.ROUTED_DEPTH] == 4
    assert route.attributes[names.ROUTED_REASON] == "learned"
    assert route.attributes[names.ROUTED_SCORES][0].startswith("eagle3:4=")


@pytest.mark.parametrize("damage", ["missing", "garbage"])
async def test_a_model_that_cannot_be_used_leaves_the_choice_to_the_replicas(
    fleet: Fleet, tmp_path: Path, damage: str
) -> None:
    model = write_route_net(tmp_path / "router", OUTCOMES, vocab_size=49152)
    if damage == "missing":
        (model / "config.json").unlink()
    else:
        (model / WEIGHTS_NAME).write_bytes(b"\x00" * 1000)
    replica = fleet.scheduler("eagle", fake=FAST, experts=EAGLE)
    router = fleet.router({"eagle": replica}, experts={"model": str(model)})
    async with ForerunClient(router.address) as client:
        started, finished = await ask(client)
        assert (started.expert_choice, finished.outcome.is_success) == (None, True)
        pinned, _ = await ask(client, expert="ngram")
        assert said(pinned.expert_choice) == ("ngram", None, RouteReason.PINNED)
