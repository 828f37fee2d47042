"""Starts the processes of a plan, watches them, and stops them in the reverse order. Nothing happens silently: every
start, death and restart is told to the display.

Redis starts first, since it is ready in a moment. Everything else starts together: the stages and schedulers wait for
each other, and importing the engine, which each does for itself, takes most of the time.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from services.cli.managed_process import ManagedProcess
from services.cli.readiness import wait_ready
from services.cli.reaper import Reaper
from services.cli.run_dir import RunDir
from services.cli.units import LaunchPlan, Unit, UnitKind

STOP_MARGIN_S = 10.0
"""What a process gets beyond its drain before it is killed."""

LOST_GRACE_S = 5.0
"""What the rest of a broken replica gets to tell its clients so."""

STOP_ORDER = (UnitKind.ROUTER, UnitKind.SCHEDULER, UnitKind.STAGE, UnitKind.PREDICTOR, UnitKind.REDIS)

HELPERS = {
    UnitKind.REDIS: "Serving goes on without the KV ledger.",
    UnitKind.PREDICTOR: "Serving goes on without predicted lengths.",
}
"""Processes that serving goes on without, and what is said when one of them stays away."""


class Display(Protocol):
    """Where the supervisor tells what happens."""

    def starting(self, unit: Unit) -> None:
        """The process was started."""

    def ready(self, unit: Unit, seconds: float) -> None:
        """It is ready, ``seconds`` after its start."""

    def stopped(self, unit: Unit) -> None:
        """It is gone, as was asked."""

    def died(self, process: ManagedProcess) -> None:
        """It is gone, and nobody asked."""

    def message(self, text: str) -> None:
        """Anything else that people should know."""


@dataclass(frozen=True, slots=True)
class Policy:
    """What the supervisor decides by."""

    restart: bool
    """Whether replicas, Redis and the predictor are started again."""
    max_restarts: int
    """Of each of them."""
    start_timeout_s: float


class StartError(Exception):
    """A process did not become ready; the display has told the details."""


class Supervisor:
    """Life: ``start`` -> ``watch`` -> ``stop``; ``stop`` is safe after a failed or cancelled ``start`` too."""

    def __init__(
        self,
        plan: LaunchPlan,
        run_dir: RunDir,
        policy: Policy,
        display: Display,
        on_restart: Callable[[], None] = lambda: None,
    ) -> None:
        """``on_restart`` is called when ``processes`` has changed, after something was started again."""
        self._on_restart = on_restart
        self._plan = plan
        self._run_dir = run_dir
        self._policy = policy
        self._display = display
        self._reaper = Reaper()
        self._processes: dict[str, ManagedProcess] = {}
        self._restarts: dict[str, int] = {}
        self._told: set[ManagedProcess] = set()
        """Processes whose end the display knows of."""

    @property
    def processes(self) -> Sequence[ManagedProcess]:
        """All that were started last, in the order of starting."""
        return [self._processes[unit.name] for unit in self._plan.units if unit.name in self._processes]

    async def start(self) -> None:
        """Starts everything; returns when all of it is ready.

        Raises:
            StartError: a process died, or was not ready in time.
        """
        for path, text in self._plan.files.items():
            self._run_dir.write_private(path, text)
        await self._reaper.start()
        redis = [unit for unit in self._plan.units if unit.kind is UnitKind.REDIS]
        await self._start(redis)
        await self._start([unit for unit in self._plan.units if unit not in redis])

    async def watch(self) -> None:
        """Returns when the system cannot go on: the router is gone, or every replica."""
        replicas = asyncio.gather(*(self._guard_replica(replica_id) for replica_id in self._plan.replica_ids))
        helpers = [asyncio.create_task(self._guard_helper(kind)) for kind in HELPERS]
        ends: list[asyncio.Future[Any]] = [replicas, asyncio.create_task(self._guard_router())]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await _cancel([*ends, *helpers])

    async def stop(self) -> None:
        """Drains and stops everything, router first. Each process is killed when its time is over."""
        for kind in STOP_ORDER:
            await self._stop([process for process in self.processes if process.unit.kind is kind])
        await self._reaper.close()

    def kill(self) -> None:
        """Ends everything at once, without draining; ``stop`` then returns soon."""
        for process in self.processes:
            process.kill()

    async def _start(self, units: Sequence[Unit]) -> list[ManagedProcess]:
        processes = [ManagedProcess(unit, self._run_dir.log_file(unit.name), self._reaper) for unit in units]
        for process in processes:
            self._processes[process.unit.name] = process
            await process.start()
            self._display.starting(process.unit)
        await self._all_ready(processes)
        return processes

    async def _all_ready(self, processes: Sequence[ManagedProcess]) -> None:
        waits = [asyncio.create_task(self._ready(process)) for process in processes]
        try:
            async with asyncio.timeout(self._policy.start_timeout_s):
                await _first_error(waits)
        except TimeoutError:
            late = [process for process, wait in zip(processes, waits, strict=True) if not wait.done()]
            for process in late:
                tail = "".join(f"\n  {line}" for line in process.log_tail())
                self._display.message(f"{process.unit.name} is not ready; its log ends:{tail}")
            names = ", ".join(process.unit.name for process in late)
            raise StartError(f"not ready within {self._policy.start_timeout_s:g} s: {names}") from None
        finally:
            await _cancel(waits)

    async def _ready(self, process: ManagedProcess) -> None:
        unit, plan = process.unit, self._plan
        probe = asyncio.create_task(wait_ready(unit, plan.tls, plan.ledger))
        try:
            await asyncio.wait({probe, process.exited}, return_when=asyncio.FIRST_COMPLETED)
            if process.exited.done():
                self._tell_death(process)
                raise StartError(f"{unit.name} {process.how_it_ended()} while starting")
            await probe
        finally:
            await _cancel([probe])
        self._display.ready(unit, process.seconds)

    async def _guard_router(self) -> None:
        for process in self.processes:
            if process.unit.kind is UnitKind.ROUTER:
                await asyncio.shield(process.exited)
                self._tell_death(process)

    async def _guard_helper(self, kind: UnitKind) -> None:
        units = [unit for unit in self._plan.units if unit.kind is kind]
        while units:
            process = self._processes[units[0].name]
            await asyncio.shield(process.exited)
            self._tell_death(process)
            if not await self._restarted(kind.value, units):
                self._display.message(HELPERS[kind])
                return

    async def _guard_replica(self, replica_id: str) -> None:
        units = self._plan.of_replica(replica_id)
        while True:
            processes = [self._processes[unit.name] for unit in units]
            self._tell_death(await _first_dead(processes))
            # A replica lives and dies as a whole: its stages serve one start of its scheduler.
            await self._stop(processes, LOST_GRACE_S)
            if not await self._restarted(replica_id, units):
                self._display.message(f"{replica_id} is gone.")
                return

    async def _restarted(self, name: str, units: Sequence[Unit]) -> bool:
        """Starts ``units`` again until they are ready or the allowance is used up."""
        while self._policy.restart and self._restarts.get(name, 0) < self._policy.max_restarts:
            self._restarts[name] = count = self._restarts.get(name, 0) + 1
            self._display.message(f"Starting {name} again ({count} of at most {self._policy.max_restarts}).")
            try:
                await self._start(units)
            except StartError as error:
                self._display.message(str(error))
                await self._stop([self._processes[unit.name] for unit in units], LOST_GRACE_S)
                continue
            self._on_restart()
            return True
        return False

    async def _stop(self, processes: Iterable[ManagedProcess], grace_s: float | None = None) -> None:
        await asyncio.gather(*(self._stop_one(process, grace_s) for process in processes))

    async def _stop_one(self, process: ManagedProcess, grace_s: float | None) -> None:
        if process.pid == 0 or process in self._told:
            return
        self._told.add(process)
        in_order = await process.stop(process.unit.drain_timeout_s + STOP_MARGIN_S if grace_s is None else grace_s)
        if not in_order:
            self._display.message(f"{process.unit.name} did not end in time and was killed.")
        self._display.stopped(process.unit)

    def _tell_death(self, process: ManagedProcess) -> None:
        self._told.add(process)
        self._display.died(process)


async def _first_dead(processes: Sequence[ManagedProcess]) -> ManagedProcess:
    """The first to end; of several, one that did not end in order, since the others followed it."""
    await asyncio.wait([process.exited for process in processes], return_when=asyncio.FIRST_COMPLETED)
    dead = [process for process in processes if process.exited.done()]
    return max(dead, key=lambda process: process.exited.result() != 0)


async def _first_error(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Waits for all; raises as soon as one raises."""
    if tasks:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    for task in tasks:
        if task.done():
            task.result()


async def _cancel(tasks: Iterable[asyncio.Future[Any]]) -> None:
    pending = [task for task in tasks if not task.done()]
    for task in pending:
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)
