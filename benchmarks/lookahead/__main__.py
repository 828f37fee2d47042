"""``python -m benchmarks.lookahead``: what admission policies make of a KV pool that is too small for all.

The same Poisson arrivals for each policy in turn, on one replica, and once more with ample memory.
"""

import argparse
import asyncio
from collections import defaultdict
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rich.progress import Progress

from benchmarks.forerun_run import scrape
from benchmarks.lookahead.calibration import StepTimes, calibrate
from benchmarks.lookahead.forecasts import ForecastRatios
from benchmarks.lookahead.workload import Arrival, Run, arrivals, crowd, serve
from benchmarks.questions import chat_prompts
from benchmarks.related import related_figures
from benchmarks.report import Figure, print_figures, write_report
from benchmarks.sp.systems import ForerunSystem
from benchmarks.systems import fast_dtype, forerun_config, model_folder
from services.cli.units import UnitKind

NAME = "lookahead"
AGGRESSIVE, LOOKAHEAD, BY_AGE = "aggressive", "lookahead", "lookahead_by_age"
POLICIES = (AGGRESSIVE, "reserve-full", BY_AGE, LOOKAHEAD)
"""``BY_AGE`` looks ahead without the predictor."""
AMPLE = {f"{policy}_ample": policy for policy in (AGGRESSIVE, LOOKAHEAD)}
BLOCK_SIZE = 32
RELATED = {
    "predictor": ("predictor_precision_min", "predictor_recall_mean", "predictor_ms_64"),
    "simulator": ("simulator_error",),
    "router-scale": ("router_decision_ms_1000_replicas",),
    "prefix-routing": ("prefix_hits_vs_one_replica",),
}
"""Measured elsewhere."""
AMPLE_KV_BYTES = 768 << 20
_DELAY = "forerun_admission_delay_seconds"
WARM_UP, WARM_UP_TOKENS = 6, 8


@dataclass
class Measurements:
    """Everything that was measured, by system and in the order of the rounds."""

    runs: dict[str, list[Run]] = field(default_factory=lambda: defaultdict(list))
    preemptions: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    discarded: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    forecasts: dict[str, list[ForecastRatios]] = field(default_factory=lambda: defaultdict(list))

    held_back_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """Mean over the starts; policies of our own only."""
    step_times: list[StepTimes] = field(default_factory=list)
    """Before each round."""
    kv_blocks: dict[str, int] = field(default_factory=dict)
    """Of each system's pool."""

    async def measure(self, name: str, system: ForerunSystem, coming: Sequence[Arrival]) -> None:
        """One run of one system."""
        before = await _counts(system)
        self.runs[name].append(await serve(system.client, coming))
        after = await _counts(system)
        counted = {key: after[key] - before.get(key, 0.0) for key in after}
        self.preemptions[name].append(counted["forerun_preemptions_total"])
        self.discarded[name].append(counted["forerun_discarded_tokens_total"])
        self.forecasts[name].append(ForecastRatios.of(counted))
        if starts := counted.get(f"{_DELAY}_count"):
            self.held_back_s[name].append(counted[f"{_DELAY}_sum"] / starts)

    def details(self) -> dict[str, object]:
        """What the simulator needs to do the same: the replica's step times and every request of every run."""
        runs = {
            name: [
                {"preemptions": preemptions, "seconds": run.seconds, "requests": [one.replayed() for one in run.served]}
                for run, preemptions in zip(runs, self.preemptions[name], strict=True)
            ]
            for name, runs in self.runs.items()
        }
        step_times = [asdict(times) for times in self.step_times]
        return {"step_times": step_times, "kv_blocks": self.kv_blocks, "block_size": BLOCK_SIZE, "runs": runs}

    def ratio(self, figure: str, name: str, other: str) -> list[float]:
        """Of a property of ``Run``, round by round; nothing where only one of the two was measured."""
        if not (self.runs.get(name) and self.runs.get(other)):
            return []
        pairs = zip(self.runs[name], self.runs[other], strict=True)
        return [getattr(mine, figure) / getattr(theirs, figure) for mine, theirs in pairs]

    def cut(self, counts: dict[str, list[float]], name: str = LOOKAHEAD) -> list[float]:
        """What looking ahead saves of what vLLM's policy has, over all rounds; none where there was nothing."""
        before, after = sum(counts.get(AGGRESSIVE, ())), sum(counts.get(name, ()))
        return [1 - after / before] if before and name in counts else []

    def figures(self, max_delay_s: float) -> dict[str, Figure]:
        """Gains first, then what they are made of."""
        wanted = {
            "preemption_cut": (self.cut(self.preemptions), "ratio"),
            "discarded_tokens_cut": (self.cut(self.discarded), "ratio"),
            "throughput_ratio": (self.ratio("tokens_per_s", LOOKAHEAD, AGGRESSIVE), "ratio"),
            "normalized_latency_ratio": (self.ratio("normalized_ms", LOOKAHEAD, AGGRESSIVE), "ratio"),
            "by_age_preemption_cut": (self.cut(self.preemptions, BY_AGE), "ratio"),
            "by_age_throughput_ratio": (self.ratio("tokens_per_s", BY_AGE, AGGRESSIVE), "ratio"),
            "ample_throughput_ratio": (self.ratio("tokens_per_s", *reversed(AMPLE)), "ratio"),
            "ample_normalized_latency_ratio": (self.ratio("normalized_ms", *reversed(AMPLE)), "ratio"),
            **self._forecast_figures(),
            "max_delay_s": ([max_delay_s], "s"),
        }
        for name, runs in self.runs.items():
            wanted |= {
                f"{name}_tokens_per_s": ([run.tokens_per_s for run in runs], "tokens/s"),
                f"{name}_normalized_ms": ([run.normalized_ms for run in runs], "ms/token"),
                f"{name}_queue_p99_s": ([run.queue_seconds(0.99) for run in runs], "s"),
                f"{name}_preemptions": (self.preemptions[name], "count"),
                f"{name}_discarded_tokens": (self.discarded[name], "tokens"),
            }
        wanted |= {f"{name}_held_back_s": (values, "s") for name, values in self.held_back_s.items()}
        return {name: Figure.of(values, unit) for name, (values, unit) in wanted.items() if values}

    def _forecast_figures(self) -> dict[str, tuple[list[float], str]]:
        figures = {}
        for name, prefix in ((LOOKAHEAD, ""), (BY_AGE, "by_age_")):
            checked = [ratios for ratios in self.forecasts.get(name, ()) if ratios.count]
            figures |= {
                f"{prefix}forecast_peak_error": ([abs(ratios.median() - 1) for ratios in checked], "ratio"),
                f"{prefix}forecast_peak_ratio": ([ratios.median() for ratios in checked], "ratio"),
                f"{prefix}forecast_under_estimated": ([ratios.share_up_to(1.0) for ratios in checked], "ratio"),
            }
        return figures


def main() -> None:
    """Runs the rounds and writes the report."""
    asyncio.run(_run(_options(), Measurements()))


async def _run(options: argparse.Namespace, measurements: Measurements) -> None:
    model = model_folder(options.model)
    prompts = chat_prompts(model)
    memory = {name: AMPLE_KV_BYTES if name in AMPLE else options.kv_mib << 20 for name in options.systems}
    systems = {name: _system(model, AMPLE.get(name, name), memory[name], options) for name in options.systems}
    with Progress() as progress:
        task = progress.add_task("measuring", total=len(systems) * (1 + options.rounds))
        async with AsyncExitStack() as stack:
            for name, system in systems.items():
                await stack.enter_async_context(system)
                await serve(system.client, crowd(prompts, WARM_UP, WARM_UP_TOKENS))
                (replica,) = (await system.client.list_replicas()).replicas
                measurements.kv_blocks[name] = replica.total_blocks
                progress.advance(task)
            for number in range(options.rounds):
                measurements.step_times.append(await calibrate(systems[options.systems[0]].client, prompts))
                for name in systems if number % 2 == 0 else reversed(systems):
                    # Half as many where nothing is to be seen but that nothing changes.
                    count = options.requests if name in POLICIES else options.requests // 2
                    coming = arrivals(prompts, count, options.rate, seed=1 + number)
                    await measurements.measure(name, systems[name], coming)
                    progress.advance(task)
                # After each round, so that a run that is cut off leaves what it measured.
                _report(measurements, options)


def _report(measurements: Measurements, options: argparse.Namespace) -> None:
    related, origins = related_figures(RELATED)
    figures = measurements.figures(options.max_delay) | related
    print_figures(figures)
    if not options.no_report:
        details = {"options": _plain(options), "related": origins} | measurements.details()
        write_report(NAME, figures, (Path(__file__).parent / "page.md").read_text(), details)


def _system(model: Path, policy: str, kv_bytes: int, options: argparse.Namespace) -> ForerunSystem:
    config = forerun_config(
        model,
        1,
        options.dtype,
        max_model_len=1024,
        max_num_seqs=options.max_num_seqs,
        kv_cache_memory_bytes=kv_bytes,
        # On a CPU vLLM's default is 128 tokens: fewer blocks in the pool than requests.
        block_size=BLOCK_SIZE,
        enable_prefix_caching=False,
    )
    config["replicas"][0]["admission"] = {
        "policy": LOOKAHEAD if policy == BY_AGE else policy,
        "max_delay_s": options.max_delay,
    }
    if policy == LOOKAHEAD:
        config["predictor"] = {"models": [str(options.predictor)]}
    return ForerunSystem(config)


async def _counts(system: ForerunSystem) -> dict[str, float]:
    pages = [unit.metrics[-1][1] for unit in system.background.units(UnitKind.SCHEDULER)]
    return await asyncio.to_thread(scrape, pages, "forerun_", "le")


def _plain(options: argparse.Namespace) -> dict[str, object]:
    return {name: value if isinstance(value, (int, float)) else str(value) for name, value in vars(options).items()}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lookahead", description=__doc__)
    parser.add_argument("--model", default="smollm2-135m", help="name, path or Hugging Face id")
    parser.add_argument(
        "--predictor", type=Path, default=Path("models/smollm2-135m/predictor-15"), help="what lookahead predicts with"
    )
    parser.add_argument("--dtype", default=fast_dtype(), help="precision of all systems")
    parser.add_argument("--systems", nargs="+", default=[*POLICIES, *AMPLE], choices=[*POLICIES, *AMPLE])
    parser.add_argument("--kv-mib", type=int, default=80, help="KV memory of the pool that is too small, in MiB")
    parser.add_argument("--max-num-seqs", type=int, default=16, help="requests that may run at once")
    parser.add_argument("--rate", type=float, default=0.6, help="requests per second")
    parser.add_argument("--requests", type=int, default=48, help="in each run")
    parser.add_argument("--rounds", type=int, default=3, help="interleaved repetitions")
    parser.add_argument("--max-delay", type=float, default=20.0, help="seconds; longest that a request is held back")
    parser.add_argument("--no-report", action="store_true", help="print the figures, leave the report as it is")
    return parser.parse_args()


if __name__ == "__main__":
    main()
