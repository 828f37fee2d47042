"""The supervisor over stub services: order, deaths, restarts, and that no process is ever left."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import psutil
import pytest

from services.cli.managed_process import ManagedProcess
from services.cli.run_dir import RunDir
from services.cli.supervisor import Policy, StartError, Supervisor
from services.cli.units import LaunchPlan, Unit, UnitKind
from services.common.ledger.config import LedgerConfig
from tests.support.free_ports import free_port

NEVER = Policy(restart=False, max_restarts=0, start_timeout_s=30)
REPLICA = Policy(restart=True, max_restarts=2, start_timeout_s=30)


class RecordingDisplay:
    """Keeps what was told, in order."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.messages: list[str] = []
        self.tails: list[list[str]] = []

    def starting(self, unit: Unit) -> None:
        self.events.append(f"starting {unit.name}")

    def ready(self, unit: Unit, seconds: float) -> None:
        self.events.append(f"ready {unit.name}")

    def stopped(self, unit: Unit) -> None:
        self.events.append(f"stopped {unit.name}")

    def died(self, process: ManagedProcess) -> None:
        self.events.append(f"died {process.unit.name}: {process.how_it_ended()}")
        self.tails.append(process.log_tail())

    def message(self, text: str) -> None:
        self.messages.append(text)


def stub(name: str, kind: UnitKind, replica_id: str | None = None, *flags: str) -> Unit:
    address = f"127.0.0.1:{free_port()}"
    command = (sys.executable, "-m", "tests.support.stub_service", address, *flags)
    return Unit(name=name, kind=kind, command=command, address=address, replica_id=replica_id)


def stage(name: str, *flags: str) -> Unit:
    return stub(name, UnitKind.STAGE, name.partition(".")[0], *flags)


def scheduler(name: str, *flags: str) -> Unit:
    return stub(name, UnitKind.SCHEDULER, name.partition(".")[0], *flags)


def plan_of(*units: Unit) -> LaunchPlan:
    return LaunchPlan(
        units=units, files={}, router_grpc="", router_http=None, http_scheme="http", model_names=("m",),
        traces_dir=None, otlp_endpoint=None, ledger=LedgerConfig(), tls=None,
    )  # fmt: skip


@contextlib.asynccontextmanager
async def running(
    tmp_path: Path, policy: Policy, *units: Unit
) -> AsyncIterator[tuple[Supervisor, RecordingDisplay, asyncio.Task[None]]]:
    """A started and watched system; stopped, and checked to be gone, at the end."""
    run_dir, display = RunDir(tmp_path / "run"), RecordingDisplay()
    with run_dir.locked():
        supervisor = Supervisor(plan_of(*units), run_dir, policy, display)
        try:
            await supervisor.start()
            watch = asyncio.create_task(supervisor.watch())
            yield supervisor, display, watch
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)
        finally:
            await supervisor.stop()
    assert descendants() == []


def descendants() -> list[psutil.Process]:
    return [
        child
        for child in psutil.Process().children(recursive=True)
        if any(word in " ".join(child.cmdline()) for word in ("stub_service", "services.cli"))
    ]


def pid_of(supervisor: Supervisor, name: str) -> int:
    return next(process.pid for process in supervisor.processes if process.unit.name == name)


async def until(condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass in time"
        await asyncio.sleep(0.05)


def names(events: Sequence[str], what: str) -> list[str]:
    return [event.removeprefix(f"{what} ") for event in events if event.startswith(f"{what} ")]


async def test_starts_all_and_stops_router_first(tmp_path: Path) -> None:
    units = (stage("r.stage-0"), scheduler("r.scheduler"), stub("router", UnitKind.ROUTER))
    async with running(tmp_path, NEVER, *units) as (_, display, _):
        assert sorted(names(display.events, "ready")) == ["r.scheduler", "r.stage-0", "router"]
    assert names(display.events, "stopped") == ["router", "r.scheduler", "r.stage-0"]


async def test_a_process_that_dies_while_starting_fails_the_start_and_shows_its_log(tmp_path: Path) -> None:
    broken = stage("r.stage-0", "broken")
    run_dir, display = RunDir(tmp_path / "run"), RecordingDisplay()
    with run_dir.locked():
        supervisor = Supervisor(plan_of(broken, stub("router", UnitKind.ROUTER)), run_dir, NEVER, display)
        with pytest.raises(StartError, match=r"r\.stage-0 ended with exit code 7 while starting"):
            await supervisor.start()
        await supervisor.stop()
    assert display.tails == [["error: this service is broken"]]
    assert descendants() == []


async def test_a_process_that_is_never_ready_ends_the_start_in_time(tmp_path: Path) -> None:
    late = stub("router", UnitKind.ROUTER, None, "never-ready")
    policy = Policy(restart=False, max_restarts=0, start_timeout_s=3)
    run_dir = RunDir(tmp_path / "run")
    with run_dir.locked():
        supervisor = Supervisor(plan_of(late), run_dir, policy, RecordingDisplay())
        with pytest.raises(StartError, match="not ready within 3 s: router"):
            await supervisor.start()
        await supervisor.stop()
    assert descendants() == []


async def test_a_dead_stage_takes_its_replica_down_and_leaves_the_other(tmp_path: Path) -> None:
    units = (
        stage("a.stage-0"), scheduler("a.scheduler"), stage("b.stage-0"), scheduler("b.scheduler"),
        stub("router", UnitKind.ROUTER),
    )  # fmt: skip
    async with running(tmp_path, NEVER, *units) as (supervisor, display, watch):
        os.kill(pid_of(supervisor, "a.stage-0"), signal.SIGKILL)
        await until(lambda: "a is gone." in display.messages)
        assert "died a.stage-0: was killed by SIGKILL" in display.events
        assert names(display.events, "stopped") == ["a.scheduler"]
        assert not watch.done()
        os.kill(pid_of(supervisor, "b.scheduler"), signal.SIGKILL)
        await asyncio.wait_for(watch, 20)


async def test_the_end_of_the_router_ends_the_system(tmp_path: Path) -> None:
    units = (scheduler("a.scheduler"), stub("router", UnitKind.ROUTER))
    async with running(tmp_path, REPLICA, *units) as (supervisor, display, watch):
        os.kill(pid_of(supervisor, "router"), signal.SIGKILL)
        await asyncio.wait_for(watch, 20)
        assert names(display.events, "starting") == ["a.scheduler", "router"]


async def test_serving_goes_on_without_a_predictor(tmp_path: Path) -> None:
    units = (stub("predictor", UnitKind.PREDICTOR), scheduler("a.scheduler"), stub("router", UnitKind.ROUTER))
    async with running(tmp_path, NEVER, *units) as (supervisor, display, watch):
        os.kill(pid_of(supervisor, "predictor"), signal.SIGKILL)
        await until(lambda: "Serving goes on without predicted lengths." in display.messages)
        assert not watch.done()
    assert names(display.events, "stopped") == ["router", "a.scheduler"]


async def test_a_predictor_is_started_again(tmp_path: Path) -> None:
    units = (stub("predictor", UnitKind.PREDICTOR), scheduler("a.scheduler"), stub("router", UnitKind.ROUTER))
    async with running(tmp_path, REPLICA, *units) as (supervisor, display, watch):
        os.kill(pid_of(supervisor, "predictor"), signal.SIGKILL)
        await until(lambda: names(display.events, "ready").count("predictor") == 2)
        assert not watch.done()


async def test_a_replica_is_started_again_as_a_whole_and_not_for_ever(tmp_path: Path) -> None:
    units = (stage("a.stage-0"), scheduler("a.scheduler"), stub("router", UnitKind.ROUTER))
    async with running(tmp_path, REPLICA, *units) as (supervisor, display, watch):
        for count in (1, 2):
            os.kill(pid_of(supervisor, "a.scheduler"), signal.SIGKILL)
            await until(lambda count=count: names(display.events, "ready").count("a.scheduler") == count + 1)
            assert names(display.events, "starting").count("a.stage-0") == count + 1
            assert f"Starting a again ({count} of at most 2)." in display.messages
        os.kill(pid_of(supervisor, "a.scheduler"), signal.SIGKILL)
        await asyncio.wait_for(watch, 20)
        assert display.messages[-1] == "a is gone."


async def test_a_child_of_a_dead_process_goes_with_it(tmp_path: Path) -> None:
    units = (scheduler("a.scheduler", "child"), stub("router", UnitKind.ROUTER))
    async with running(tmp_path, NEVER, *units) as (supervisor, _, watch):
        process = supervisor.processes[0]
        grandchild = int(process.log_tail()[0].removeprefix("child "))
        assert is_alive(grandchild)
        os.kill(process.pid, signal.SIGKILL)
        await asyncio.wait_for(watch, 20)
        await until(lambda: not is_alive(grandchild), 5)


async def test_a_process_that_ignores_the_signal_is_killed_with_a_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.cli.supervisor.STOP_MARGIN_S", 1.0)
    units = (scheduler("a.scheduler", "stubborn", "child"), stub("router", UnitKind.ROUTER))
    async with running(tmp_path, NEVER, *units) as (supervisor, display, _):
        grandchild = int(supervisor.processes[0].log_tail()[0].removeprefix("child "))
    assert "a.scheduler did not end in time and was killed." in display.messages
    assert not is_alive(grandchild)


SUPERVISOR_PROGRAM = """
import asyncio, sys
from pathlib import Path
from tests.integration.test_cli_supervisor import *

async def main():
    run_dir = RunDir(Path(sys.argv[1]))
    units = (scheduler("a.scheduler", "child"), stub("router", UnitKind.ROUTER))
    with run_dir.locked():
        supervisor = Supervisor(plan_of(*units), run_dir, NEVER, RecordingDisplay())
        await supervisor.start()
        print(*(process.pid for process in supervisor.processes),
              supervisor.processes[0].log_tail()[0].removeprefix("child "), flush=True)
        await asyncio.sleep(600)

asyncio.run(main())
"""


def test_kill_9_of_the_supervisor_leaves_no_process(tmp_path: Path) -> None:
    supervisor = subprocess.Popen(
        [sys.executable, "-c", SUPERVISOR_PROGRAM, str(tmp_path / "run")], stdout=subprocess.PIPE, text=True
    )
    try:
        assert supervisor.stdout is not None
        pids = [int(pid) for pid in supervisor.stdout.readline().split()]
        assert len(pids) == 3
        assert all(is_alive(pid) for pid in pids)
    finally:
        supervisor.kill()
        supervisor.wait()
    deadline = time.monotonic() + 10
    while left := [pid for pid in pids if is_alive(pid)]:
        assert time.monotonic() < deadline, f"left behind: {left}"
        time.sleep(0.05)


def is_alive(pid: int) -> bool:
    """Zombies are dead: whoever inherits them has not looked yet."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
