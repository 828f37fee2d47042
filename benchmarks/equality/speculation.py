"""``python -m benchmarks.equality --speculate``: text with speculation against the same stages without it, greedy.

Two hundred requests of six kinds, 1, 8 and 32 in flight at all times, with two, three and four stages.
"""

import asyncio
import hashlib
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn
from transformers import AutoConfig, AutoTokenizer

from benchmarks.equality.pair import Pair
from benchmarks.equality.parts import Part, PartStore, Side
from benchmarks.equality.work import Work, six_kinds
from benchmarks.forerun_run import scrape
from benchmarks.random_adapter import write_random_adapter
from benchmarks.report import write_report
from benchmarks.systems import forerun_config
from services.cli.background import BackgroundSystem
from services.client.client import ForerunClient
from services.common.errors import ConfigError
from services.common.types import Delta, SamplingOptions
from services.workers.draft_adapter.config import DraftAdapterConfig

RANDOM = "random"
BATCHES = (32, 8, 1)
"""Requests in flight, the largest first: there prompts are prefilled beside drafts, later long ones come from the
prefix cache."""
DROP_FRACTION = 0.2
KV_BYTES = 1536 << 20
"""Of each stage: holds the long prompts from one batch to the next."""

PARTS = Path(".forerun/equality-sp")
_PAGE = Path(__file__).parent / "page_sp.md"


@dataclass(frozen=True)
class Plan:
    """What is asked for."""

    model: Path
    adapters: Sequence[str]
    """Folders, and ``RANDOM`` for the numbers of stages that no folder is for."""
    stages: Sequence[int]
    prompts: dict[str, int]
    """Number of prompts by precision."""
    tokens: int
    """Of each answer; alone half as many."""
    report: bool


def compare(plan: Plan) -> bool:
    """Runs what has not been run yet; whether every float32 answer is the plain one. Raises ``ConfigError``."""
    adapters = _adapters(plan)
    work = {dtype: six_kinds(plan.model, count) for dtype, count in plan.prompts.items()}
    answers = 2 * len(BATCHES) * len(adapters) * sum(plan.prompts.values())
    pairs: list[Pair] = []
    with Progress(*Progress.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn()) as progress:
        task = progress.add_task("answers", total=answers)
        for dtype, requests in work.items():
            store = PartStore(PARTS, _conditions(plan, requests))
            for adapter in adapters:
                pair = Pair(dtype, adapter.stages, requests)
                pairs.append(pair)
                layers = adapter.config.layer_partition(adapter.stages)
                for folder, parts in ((None, pair.plain), (adapter.folder, pair.speculating)):
                    side = Side(dtype, layers, folder)
                    progress.update(task, description=side.name)
                    run = _SideRun(plan, side, store, lambda count: progress.advance(task, count))
                    parts.update(asyncio.run(run.parts(requests)))
                if plan.report:
                    _report(plan, adapters, pairs)
    for pair in pairs:
        for name, figure in pair.figures().items():
            print(f"{name:44} {figure.median:g} {figure.unit}")
    return not sum(pair.differing for pair in pairs if pair.dtype == "float32")


class _SideRun:
    """One pipeline, started only when a part of it is missing."""

    def __init__(self, plan: Plan, side: Side, store: PartStore, advance: Callable[[int], None]) -> None:
        self._plan = plan
        self._side = side
        self._store = store
        self._advance = advance

    async def parts(self, work: Sequence[Work]) -> dict[int, Part]:
        """Every batch's part, from the store where it is there."""
        parts = {batch: part for batch in BATCHES if (part := self._store.read(self._side, batch)) is not None}
        self._advance(len(parts) * len(work))
        missing = [batch for batch in BATCHES if batch not in parts]
        if missing:
            with BackgroundSystem(self._config()) as system:
                async with ForerunClient(system.state.router_grpc) as client:
                    for batch in missing:
                        parts[batch] = await self._part(system, client, work, batch)
                        self._store.write(self._side, batch, parts[batch])
        return parts

    def _config(self) -> dict[str, Any]:
        config = forerun_config(
            self._plan.model,
            len(self._side.layers),
            self._side.dtype,
            self._side.layers,
            enable_prefix_caching=True,
            kv_cache_memory_bytes=KV_BYTES,
        )
        if self._side.adapter is not None:
            config["replicas"][0]["speculation"] = {
                "draft_adapter": str(self._side.adapter.resolve()),
                "mode": "always",
                "drop_fraction": DROP_FRACTION,
            }
        return config

    async def _part(self, system: BackgroundSystem, client: ForerunClient, work: Sequence[Work], batch: int) -> Part:
        places = asyncio.Semaphore(batch)
        tokens = self._plan.tokens if batch > 1 else self._plan.tokens // 2

        async def answer(request: Work) -> list[int]:
            sampling = SamplingOptions(temperature=0.0, max_tokens=tokens, structured_output=request.grammar)
            said: list[int] = []
            async with places:
                async for event in client.generate(tuple(request.prompt), sampling):
                    if isinstance(event, Delta):
                        said.extend(event.token_ids)
            self._advance(1)
            return said

        before, started = _drafts(system), time.monotonic()
        answers = await asyncio.gather(*map(answer, work))
        seconds = time.monotonic() - started
        counts = [int(now - then) for now, then in zip(_drafts(system), before, strict=True)]
        return Part(list(answers), *counts, seconds=round(seconds, 1))


@dataclass(frozen=True)
class _Adapter:
    folder: Path
    config: DraftAdapterConfig
    stages: int


def _adapters(plan: Plan) -> list[_Adapter]:
    """One for each number of stages, in their order."""
    given: dict[int, _Adapter] = {}
    for folder in (Path(each) for each in plan.adapters if each != RANDOM):
        config = DraftAdapterConfig.read(folder)
        stages = round(config.target_layers / config.exit_layer)
        given[stages] = _Adapter(folder, config, stages)
    if RANDOM in plan.adapters:
        layers = AutoConfig.from_pretrained(str(plan.model)).num_hidden_layers
        for stages in set(plan.stages) - given.keys():
            exit_layer = layers // stages
            folder = PARTS / f"random-{exit_layer}"
            folder.mkdir(parents=True, exist_ok=True)
            write_random_adapter(folder, plan.model, exit_layer)
            given[stages] = _Adapter(folder, DraftAdapterConfig.read(folder), stages)
    if missing := sorted(set(plan.stages) - given.keys()):
        raise ConfigError(f"--speculate: no adapter for {missing} stages; name one, or add {RANDOM}, or --stages")
    return [given[stages] for stages in plan.stages]


def _conditions(plan: Plan, work: Sequence[Work]) -> dict[str, Any]:
    tree = subprocess.run(["git", "rev-parse", "HEAD:services"], capture_output=True, text=True, check=True)
    return {
        "services": tree.stdout.strip(),
        "model": str(plan.model),
        "work": hashlib.sha256(repr(work).encode()).hexdigest(),
        "tokens": plan.tokens,
        "drop_fraction": DROP_FRACTION,
    }


def _drafts(system: BackgroundSystem) -> list[float]:
    """Drafts so far that ran ahead, that were right, and that were dropped; zeros without speculation."""
    counted = scrape([page for unit in system.state.units for _, page in unit.metrics], "forerun_sp_")
    return [counted.get(f"forerun_sp_{what}_tokens_total", 0.0) for what in ("drafted", "accepted", "dropped")]


def _report(plan: Plan, adapters: Sequence[_Adapter], pairs: Sequence[Pair]) -> None:
    tokenizer = AutoTokenizer.from_pretrained(str(plan.model))
    divergences = [each for pair in pairs for each in pair.divergences(tokenizer)]
    names = {f"p{adapter.stages}": adapter.folder.name for adapter in adapters}
    seconds = sum(part.seconds for pair in pairs for part in (*pair.plain.values(), *pair.speculating.values()))
    figures = {name: figure for pair in pairs for name, figure in pair.figures().items()}
    texts = [
        f"- {each['dtype']}, {each['stages']} stages, batch {each['batch']}, request {each['request']} "
        f"({each['kind']}), token {each['position']}: without {each['plain']!r}, with {each['speculating']!r}"
        for each in divergences
    ]
    page = _PAGE.read_text().replace("{divergences}", "\n".join(texts) or "None.")
    page = page.replace("{adapters}", ", ".join(f"{stages} {name}" for stages, name in names.items()))
    details = {"adapters": names, "seconds": round(seconds), "divergences": divergences}
    write_report("equality-sp", figures, page, details)
