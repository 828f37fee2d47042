"""Starts the processes of one split and measures their stages: the very ones that serve, under steady decoding."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise

import httpx
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from services.cli.background import BackgroundSystem
from services.cli.errors import EXIT_FAILED, CliError
from services.cli.replica_truth import replica_info
from services.cli.steady_batch import steady_batch
from services.cli.units import UnitKind
from services.client import ForerunClient
from services.client.convert import Prompt
from services.scheduler.sp_measurement import StageWindow, Window
from services.scheduler.sp_split import Split

MIN_STEPS = 24
"""A window lasts until so many steps have passed, however slow the device is."""

_BUSY, _IDLE, _OVERHEAD, _DRAFT, _STEPS, _REQUESTS = (
    "forerun_stage_busy_seconds_total",
    "forerun_stage_idle_seconds_total",
    "forerun_stage_overhead_seconds_total",
    "forerun_stage_draft_seconds_total",
    "forerun_stage_step_seconds_count",
    "forerun_stage_scheduled_requests_total",
)
_CONFIDENCE = "forerun_sp_draft_confidence_bucket"
_HTTP_TIMEOUT_S = 30.0

Counters = dict[str, float]
"""By name; those with labels by ``name{values}``, the labels in alphabetical order."""


@dataclass(frozen=True, slots=True)
class _Reading:
    when_s: float
    tokens: int
    stages: list[Counters]
    core: Counters


class SplitRun:
    """A running system whose only replica is split in one way."""

    def __init__(
        self,
        split: Split,
        client: ForerunClient,
        http: httpx.AsyncClient,
        pages: Sequence[str],
        prompts: Sequence[Prompt],
    ) -> None:
        """``pages``: host:port of the metrics pages of each stage, first to last, and of the engine core."""
        self._split = split
        self._prompts = prompts
        self._client = client
        self._http = http
        *self._stage_pages, self._core_page = pages
        self._next_prompt = 0

    async def warm_up(self, batch: int) -> None:
        """Brings every process to the state in which it will be measured."""
        async with steady_batch(self._client, self._take(batch)):
            pass

    async def measure(self, batch: int, seconds: float) -> Window:
        """As ``windows``, but one."""
        (window,) = await self.windows(batch, seconds, 1)
        return window

    async def windows(self, batch: int, seconds: float, count: int) -> list[Window]:
        """``batch`` requests that decode for ``count`` windows of ``seconds`` or longer, one after the other.

        Each call takes other prompts. Raises ``CliError`` when a request ends or a page does not answer.
        """
        windows = []
        async with steady_batch(self._client, self._take(batch)) as counted:
            last = await self._read(counted.tokens)
            for _ in range(count):
                first = last
                while last.stages[-1][_STEPS] - first.stages[-1][_STEPS] < MIN_STEPS:
                    await asyncio.sleep(seconds)
                    last = await self._read(counted.tokens)
                windows.append(self._window(batch, first, last))
        return windows

    def _take(self, count: int) -> list[Prompt]:
        """The next ``count``, from the beginning again behind the last."""
        first, self._next_prompt = self._next_prompt, self._next_prompt + count
        return [self._prompts[number % len(self._prompts)] for number in range(first, first + count)]

    async def _read(self, tokens: int) -> _Reading:
        now_s = time.perf_counter()
        *stages, core = await asyncio.gather(*(self._page(page) for page in (*self._stage_pages, self._core_page)))
        return _Reading(now_s, tokens, list(stages), core)

    async def _page(self, address: str) -> Counters:
        try:
            text = (await self._http.get(f"http://{address}/metrics")).raise_for_status().text
        except httpx.HTTPError as error:
            raise CliError(f"http://{address}/metrics does not answer: {error}", EXIT_FAILED) from error
        samples = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
        return {_key(sample): sample.value for sample in samples if sample.name.startswith("forerun_")}

    def _window(self, batch: int, first: _Reading, last: _Reading) -> Window:
        stages = [_spent(*counted) for counted in zip(first.stages, last.stages, strict=True)]
        core = _spent(first.core, last.core)
        ending = stages[-1]
        return Window(
            batch=batch,
            steps_in_flight=self._split.steps_in_flight(batch),
            # A stage's time is idle, busy or overhead: no edge of the window cuts a step.
            step_ms=1000.0 * (ending[_BUSY] + ending[_IDLE] + ending[_OVERHEAD]) / ending[_STEPS],
            tokens_per_s=(last.tokens - first.tokens) / (last.when_s - first.when_s),
            stages=tuple(_stage(counted) for counted in stages),
            drafts=_drafts(core),
        )


@asynccontextmanager
async def connect(split: Split, system: BackgroundSystem, prompts: Sequence[Prompt]) -> AsyncIterator[SplitRun]:
    """To the replica that ``system`` runs; ``prompts`` are taken in turn."""
    state = system.state
    stages = system.units(UnitKind.STAGE)
    # The first tensor rank of each stage tells the time of all, since they wait for each other in every layer.
    ranks = len(stages) // split.stages
    (scheduler,) = system.units(UnitKind.SCHEDULER)
    pages = [*(unit.metrics[0][1] for unit in stages[::ranks]), scheduler.metrics[1][1]]
    async with ForerunClient(state.router_grpc) as client, httpx.AsyncClient(timeout=_HTTP_TIMEOUT_S) as http:
        yield SplitRun(split, client, http, pages, prompts)


async def kv_sequences(system: BackgroundSystem, context: int) -> int:
    """Sequences of ``context`` tokens whose keys and values the replica holds. ``CliError`` when it holds not one."""
    (scheduler,) = system.units(UnitKind.SCHEDULER)
    info = await replica_info(scheduler.address, system.state.tls)
    held = info.total_blocks * info.block_size // context
    if not held:
        tokens = info.total_blocks * info.block_size
        raise CliError(f"the KV memory holds {tokens} tokens, no sequence of --context {context}; lower it")
    return held


def _spent(first: Counters, last: Counters) -> Counters:
    return {name: value - first.get(name, 0.0) for name, value in last.items()}


def _key(sample: Sample) -> str:
    return sample.name + "".join(f"{{{value}}}" for _, value in sorted(sample.labels.items()))


def _drafts(spent: Counters) -> tuple[tuple[float, float], ...]:
    """Judged drafts and right ones in each bucket of confidence, from the histogram's running sums."""
    bounds = [key.removeprefix(_CONFIDENCE)[1:].split("}")[0] for key in spent if key.startswith(_CONFIDENCE)]
    rising = sorted(set(bounds), key=float)
    sums = [[spent.get(f"{_CONFIDENCE}{{{bound}}}{{{right}}}", 0.0) for bound in rising] for right in (False, True)]
    wrong, right = ([high - low for low, high in pairwise([0.0, *each])] for each in sums)
    return tuple((no + yes, yes) for no, yes in zip(wrong, right, strict=True))


def _stage(spent: Counters) -> StageWindow:
    steps = spent[_STEPS]
    return StageWindow(
        rows=spent[_REQUESTS] / steps,
        model_ms=1000.0 * (spent[_BUSY] - spent[_DRAFT] + spent[_OVERHEAD]) / steps,
        draft_ms=1000.0 * spent[_DRAFT] / steps,
    )
