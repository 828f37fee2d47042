"""The life of one ``forerun up``: start, tell, serve, drain; signals decide when."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

from services.cli.errors import EXIT_FAILED, EXIT_INTERRUPTED
from services.cli.run_dir import RunDir, RunState, UnitState
from services.cli.scrape_targets import TARGETS_FILE, scrape_targets
from services.cli.supervisor import Display, Policy, StartError, Supervisor
from services.cli.units import LaunchPlan

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class SystemRun:
    """Runs a plan to its end and returns the exit code of the command."""

    def __init__(self, plan: LaunchPlan, run_dir: RunDir, policy: Policy, display: Display, config_file: Path) -> None:
        self._plan = plan
        self._run_dir = run_dir
        self._display = display
        self._config_file = config_file
        self._supervisor = Supervisor(plan, run_dir, policy, display, self._publish_state)
        self._asked_to_stop = asyncio.Event()

    async def run(self, when_ready: Callable[[], Awaitable[int | None]]) -> int:
        """Starts everything, calls ``when_ready``, and serves until a signal comes or the system fails.

        Args:
            when_ready: its result, unless ``None``, ends the run as the exit code.
        """
        self._listen_to_signals()
        try:
            started = await self._or_stop(self._supervisor.start())
            if not started:
                return EXIT_INTERRUPTED
            self._publish_state()
            return await self._serve(when_ready)
        except StartError as error:
            self._display.message(f"error: {error}")
            return EXIT_FAILED
        finally:
            await self._supervisor.stop()

    async def _serve(self, when_ready: Callable[[], Awaitable[int | None]]) -> int:
        watch = asyncio.create_task(self._supervisor.watch())
        ready = asyncio.create_task(_call(when_ready))
        stop = asyncio.create_task(self._asked_to_stop.wait())
        try:
            waiting: set[asyncio.Task[None] | asyncio.Task[int | None] | asyncio.Task[bool]] = {watch, ready, stop}
            while True:
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                if stop.done():
                    self._display.message("Draining and stopping; once more to stop at once.")
                    return 0
                if watch.done():
                    watch.result()
                    self._display.message("error: nothing is left that could serve")
                    return EXIT_FAILED
                if (code := ready.result()) is not None:
                    return code
                waiting.discard(ready)
        finally:
            for task in (watch, ready, stop):
                task.cancel()
            await asyncio.gather(watch, ready, stop, return_exceptions=True)

    async def _or_stop(self, work: Awaitable[None]) -> bool:
        """Whether ``work`` was done before a signal came; it is cancelled by the signal."""
        working = asyncio.ensure_future(work)
        stop = asyncio.create_task(self._asked_to_stop.wait())
        try:
            await asyncio.wait([working, stop], return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                working.result()
                return True
            return False
        finally:
            working.cancel()
            stop.cancel()
            await asyncio.gather(working, stop, return_exceptions=True)

    def _listen_to_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self._on_signal)

    def _on_signal(self) -> None:
        if self._asked_to_stop.is_set():
            self._supervisor.kill()
        self._asked_to_stop.set()

    def _publish_state(self) -> None:
        state = self._state()
        self._run_dir.write_state(state)
        self._run_dir.publish(self._run_dir.path / TARGETS_FILE, scrape_targets(state.units))

    def _state(self) -> RunState:
        plan = self._plan
        return RunState(
            pid=os.getpid(),
            config_file=self._config_file.absolute(),
            router_grpc=plan.router_grpc,
            router_http=f"{plan.http_scheme}://{plan.router_http}" if plan.router_http else None,
            model_names=plan.model_names,
            traces_dir=plan.traces_dir,
            otlp_endpoint=plan.otlp_endpoint,
            ledger=plan.ledger,
            tls=plan.tls,
            units=tuple(
                UnitState(
                    name=process.unit.name,
                    kind=process.unit.kind,
                    replica_id=process.unit.replica_id,
                    pid=process.pid,
                    address=process.unit.address,
                    metrics=process.unit.metrics,
                    log_file=process.log_file,
                )
                for process in self._supervisor.processes
            ),
        )


async def _call(function: Callable[[], Awaitable[int | None]]) -> int | None:
    return await function()
