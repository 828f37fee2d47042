"""The parts of the benchmark, over one set of conditions."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from rich.progress import Progress
from transformers import AutoTokenizer

from benchmarks.questions import chat_prompts
from benchmarks.sp.breakdown import BATCHES as BREAKDOWN_BATCHES
from benchmarks.sp.breakdown import measure_breakdown
from benchmarks.sp.comparison import Workload, started
from benchmarks.sp.findings import Findings
from benchmarks.sp.latency import LOADS, fastest, knee, measure_latency, report_latency
from benchmarks.sp.latency_plot import draw_latency
from benchmarks.sp.splits import Layers, best_splits
from benchmarks.sp.systems import Conditions, ForerunSystem, System
from benchmarks.sp.throughput import (
    MICRO,
    ONE_PROCESS,
    SPECULATION,
    STOCK,
    WHOLE,
    measure_throughput,
    report_throughput,
)

SYSTEMS = (SPECULATION, MICRO, WHOLE, STOCK, ONE_PROCESS)
DEFAULT_LATENCY_BATCH = 4
"""Where throughput was not measured."""


@dataclass(frozen=True)
class Options:
    """What the command line says."""

    model: Path
    dtype: str
    eager: bool
    adapter: Path
    drop_fraction: float | str
    systems: list[str]
    batches: list[int]
    rounds: int
    tokens: int
    splits: list[int]
    """Layers of the first stage that are tried."""
    latency_batch: int | None
    latency_rounds: int
    plot: Path | None


class Benchmark:
    """Fills ``findings`` part by part; each method named as in ``--parts`` is one."""

    def __init__(self, options: Options, target_layers: int, findings: Findings, progress: Progress) -> None:
        self._options = options
        self._target_layers = target_layers
        self._findings = findings
        self._progress = progress
        self._prompts = chat_prompts(options.model)
        self._conditions = Conditions(options.model, options.dtype, max(options.batches), options.eager)
        self._layers: dict[str, Layers] = {}

    async def splits(self) -> None:
        """The layers of our pipeline's stages, for the parts that follow."""
        make = {
            SPECULATION: self._speculating,
            MICRO: self._conditions.micro_batches,
            WHOLE: self._conditions.whole_batch,
        }
        candidates = [[first, self._target_layers - first] for first in self._options.splits]
        if len(candidates) == 1:
            self._layers = dict.fromkeys(make, candidates[0])
            return
        self._layers = await best_splits(make, self._prompts, candidates, self._findings, self._progress)

    async def throughput(self) -> None:
        """All systems at all batches."""
        options, conditions = self._options, self._conditions
        make: dict[str, Callable[[], System]] = {
            SPECULATION: lambda: self._speculation(conditions, options.drop_fraction),
            MICRO: lambda: conditions.micro_batches(self._layers[MICRO]),
            WHOLE: lambda: conditions.whole_batch(self._layers[WHOLE]),
            STOCK: conditions.stock_pipeline,
            ONE_PROCESS: conditions.one_process,
        }
        systems = {name: make[name]() for name in options.systems}
        workload = Workload(self._prompts, options.batches, options.tokens)
        end_token = AutoTokenizer.from_pretrained(str(options.model)).eos_token_id
        comparison = await measure_throughput(systems, workload, options.rounds, self._progress)
        report_throughput(comparison, workload.batches, end_token, self._findings)

    async def breakdown(self) -> None:
        """Speculation without its pieces, and with one more at a time."""
        options, conditions = self._options, self._conditions
        pieces = {"sp_alone": self._speculation(conditions, 0.0)}
        if options.drop_fraction:
            pieces["selective"] = self._speculation(conditions, options.drop_fraction)
        pieces["host_embedding"] = self._speculation(conditions, options.drop_fraction, embedding="host")
        workload = Workload(self._prompts, BREAKDOWN_BATCHES, options.tokens)
        base = conditions.micro_batches(self._layers[MICRO])
        await measure_breakdown(pieces, base, workload, options.rounds, self._findings, self._progress)

    async def latency(self) -> None:
        """Speculation and the faster of our pipelines under arrivals."""
        batch, rounds = self._latency_batch(), self._options.latency_rounds
        conditions = replace(self._conditions, max_num_seqs=batch)
        sp = self._speculation(conditions, self._options.drop_fraction)
        pipelines = {
            MICRO: conditions.micro_batches(self._layers[MICRO]),
            WHOLE: conditions.whole_batch(self._layers[WHOLE]),
        }
        task = self._progress.add_task("latency", total=1 + 2 * len(pipelines) + rounds * len(LOADS))

        def advance() -> None:
            self._progress.advance(task)

        async with started({SPECULATION: sp, **pipelines}, self._prompts[:batch], advance):
            best, capacity = await fastest(pipelines, self._prompts, batch, advance)
            loads = await measure_latency(sp, pipelines[best], capacity, self._prompts, rounds, advance)
        report_latency(loads, self._findings)
        self._findings.details["latency"] = {
            "max_num_seqs": batch,
            "pipeline": best,
            "requests_per_s": {f"load_{100 * load.share:.0f}": load.requests_per_s for load in loads},
            "knee": f"load_{100 * knee(loads).share:.0f}",
        }
        if self._options.plot is not None:
            draw_latency(loads, knee(loads), self._options.plot)

    def _latency_batch(self) -> int:
        """The one asked for, else the batch at which speculation was seen to gain most."""
        gains = {
            batch: median(values)
            for batch in self._options.batches
            if (values := self._findings.values.get(f"sp_vs_best_pp_b{batch}"))
        }
        return self._options.latency_batch or max(gains, key=lambda batch: gains[batch], default=DEFAULT_LATENCY_BATCH)

    def _speculating(self, layers: Layers) -> ForerunSystem:
        options = self._options
        return self._conditions.speculation(options.adapter, options.drop_fraction, layer_partition=layers)

    def _speculation(self, conditions: Conditions, drop_fraction: float | str, **replica: str) -> ForerunSystem:
        layers = self._layers[SPECULATION]
        return conditions.speculation(self._options.adapter, drop_fraction, layer_partition=layers, **replica)
