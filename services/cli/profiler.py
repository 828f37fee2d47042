"""Measures splits of a model one after the other, each in a system of its own."""

import asyncio
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from services.cli.background import BackgroundSystem, BackgroundSystemError
from services.cli.errors import EXIT_FAILED, CliError
from services.cli.profile_prompts import PROMPTS
from services.cli.profile_run import connect, kv_sequences
from services.cli.profile_splits import Adapter, Target, adapter_for, system_for
from services.common.training.progress import Listener
from services.scheduler.sp_measurement import Window, balanced_layers, split_profile
from services.scheduler.sp_profile import SplitProfile
from services.scheduler.sp_split import Split


@dataclass(frozen=True, slots=True)
class Schedule:
    """What is measured of each split."""

    rows: tuple[int, ...]
    """Rows of a step, rising, two or more."""
    seconds: float
    """Of each measurement."""
    rounds: int = 1
    """Measurements of each number of rows."""

    def batches(self, split: Split) -> list[int]:
        """Sequences at once: what makes the rows, and one alone, which shows the hops between micro-batched stages."""
        return sorted({1, *(rows * split.micro_batches for rows in self.rows)})


@dataclass(frozen=True, slots=True)
class Profiler:
    """What all splits have in common."""

    base: Mapping[str, Any]
    """As ``LocalConfig`` reads it; the model is one that engines can load."""
    adapters: Sequence[Adapter]
    target: Target
    schedule: Schedule
    context: int
    """Tokens of a sequence."""
    listen: Listener

    def measure(self, splits: Sequence[Split], *, balance: bool) -> list[SplitProfile]:
        """Their profiles; with ``balance`` also that of each split whose stages work at once, with balanced layers.

        Raises:
            CliError: a system does not start, a request ends, or the KV memory is too small.
        """
        measured = []
        for split in splits:
            windows, profile = self._run(split)
            measured.append(profile)
            if balance and split.stages > 1 and split.micro_batching:
                middle = sorted(windows, key=lambda window: window.batch)[len(windows) // 2]
                layers = balanced_layers(split.layers, [stage.busy_ms for stage in middle.stages])
                if layers != split.layers and self._can_draft(split, layers):
                    measured.append(self._run(replace(split, layers=layers))[1])
        return measured

    def _can_draft(self, split: Split, layers: Sequence[int]) -> bool:
        adapter = adapter_for(split.sp, self.adapters) if split.sp > 1 else None
        return adapter is None or adapter.fits(layers)

    def _run(self, split: Split) -> tuple[list[Window], SplitProfile]:
        batches, on_cuda = self.schedule.batches(split), self.target.on_cuda
        with _running(system_for(split, self.base, self.adapters, max(batches), on_cuda=on_cuda)) as system:
            windows, held = asyncio.run(self._measure(split, system, batches))
        try:
            return windows, split_profile(split, windows, held)
        except ValueError as error:
            raise CliError(f"{split}: {error}", EXIT_FAILED) from error

    async def _measure(self, split: Split, system: BackgroundSystem, wanted: list[int]) -> tuple[list[Window], int]:
        held = await kv_sequences(system, self.context)
        # What does not fit would wait or be preempted, and a step would not have the rows that it should.
        batches = [batch for batch in wanted if batch <= held]
        self.listen.step(str(split), total=len(batches) * self.schedule.rounds)
        windows: list[Window] = []
        async with connect(split, system, PROMPTS) as run:
            await run.warm_up(max(batches))
            for batch in batches * self.schedule.rounds:
                windows.append(await run.measure(batch, self.schedule.seconds))
                self.listen.reach(len(windows), f"{batch} sequences: {windows[-1].step_ms:.1f} ms a step")
        return windows, held


@contextmanager
def _running(config: Mapping[str, Any]) -> Iterator[BackgroundSystem]:
    try:
        # `forerun up` gives up by itself after the configuration's start_timeout_s.
        with BackgroundSystem(config, ready_timeout_s=math.inf) as system:
            yield system
    except BackgroundSystemError as error:
        raise CliError(str(error), EXIT_FAILED) from error
