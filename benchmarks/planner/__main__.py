"""``python -m benchmarks.planner``: what ``forerun plan`` predicts, against what the same systems then do.

Each split is started in turn. While a batch decodes, windows alternate: in one its stages are profiled as ``forerun
profile`` does, in the next the throughput is measured, so that a machine whose speed drifts does so for both.
"""

import argparse
import asyncio
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path
from statistics import mean

from rich.progress import Progress

from benchmarks.planner.verdict import Outcome, judge
from benchmarks.questions import chat_prompts
from benchmarks.report import Figure, print_figures, write_report
from benchmarks.sp.systems import STAGE_KV_BYTES, read_adapter
from benchmarks.systems import fast_dtype, forerun_config, model_folder
from services.cli.background import BackgroundSystem
from services.cli.profile_run import connect, kv_sequences
from services.cli.profile_splits import Adapter, system_for
from services.scheduler.sp_measurement import Window, split_profile
from services.scheduler.sp_planner import plan_split
from services.scheduler.sp_profile import SplitProfile
from services.scheduler.sp_split import Split

CONTEXT = 512
"""Tokens of a sequence, for what the KV memory holds."""


class Measurements:
    """Everything that was measured, by split."""

    def __init__(self) -> None:
        self.windows: dict[Split, list[Window]] = defaultdict(list)
        self.tokens_per_s: dict[tuple[Split, int], list[float]] = defaultdict(list)
        self.held: dict[Split, int] = {}

    def profile(self, split: Split) -> SplitProfile:
        """As ``forerun profile`` would have written it."""
        return split_profile(split, self.windows[split], self.held[split])

    def outcomes(self) -> list[Outcome]:
        """Prediction and measurement of each split and batch."""
        profiles = {split: self.profile(split) for split in self.windows}
        return [
            # Without drops, as the splits ran.
            Outcome(split, batch, plan_split(profiles[split], batch, drop=0.0).prediction.tokens_per_s, tuple(runs))
            for (split, batch), runs in self.tokens_per_s.items()
        ]


def main() -> None:
    """Measures, predicts, compares and writes the report."""
    options = _options()
    model = model_folder(options.model)
    adapter = Adapter(options.adapter, read_adapter(options.adapter))
    splits = [
        Split(tp=2),
        Split(pp=2, layers=tuple(options.layers)),
        Split(pp=2, layers=tuple(options.layers), micro_batching=False),
        Split(sp=2, layers=tuple(adapter.config.layer_partition(2))),
        Split(sp=2, layers=tuple(options.layers)),
    ]
    prompts = chat_prompts(model)
    measurements = Measurements()
    with Progress() as progress:
        task = progress.add_task("measuring", total=options.rounds * len(splits))
        for number in range(options.rounds):
            for split in splits if number % 2 == 0 else reversed(splits):
                config = _config(split, model, adapter, options)
                with BackgroundSystem(config) as system:
                    asyncio.run(_visit(split, system, prompts, options, measurements))
                progress.advance(task)
    _report(measurements, write=not options.no_report)


async def _visit(
    split: Split, system: BackgroundSystem, prompts: list[list[int]], options: argparse.Namespace, into: Measurements
) -> None:
    async with connect(split, system, prompts) as run:
        into.held[split] = await kv_sequences(system, CONTEXT)
        await run.warm_up(max(options.batches))
        # One sequence alone shows the hops between micro-batched stages.
        into.windows[split].append(await run.measure(1, options.seconds))
        for batch in options.batches:
            windows = await run.windows(batch, options.seconds, 2 * options.pairs)
            into.windows[split] += windows[::2]
            into.tokens_per_s[split, batch].append(mean(window.tokens_per_s for window in windows[1::2]))


def _config(split: Split, model: Path, adapter: Adapter, options: argparse.Namespace) -> dict[str, object]:
    most = max(options.batches)
    base = forerun_config(
        model, 1, options.dtype, max_model_len=2048, max_num_seqs=most, kv_cache_memory_bytes=STAGE_KV_BYTES
    )
    return system_for(split, base, [adapter], most, on_cuda=False)


def _report(measurements: Measurements, *, write: bool) -> None:
    outcomes = measurements.outcomes()
    verdict = judge(outcomes)
    figures = {
        "planner_error_max": Figure.of([verdict.error_max], "ratio"),
        "planner_error_mean": Figure.of([verdict.error_mean], "ratio"),
        "planner_picks_best": Figure.of([verdict.picks_best], "ratio"),
        "planner_picks_best_or_tied": Figure.of([verdict.picks_best_or_tied], "ratio"),
    }
    for outcome in outcomes:
        place = f"{_key(outcome.split)}_b{outcome.batch}"
        figures[f"planner_error_{place}"] = Figure.of([outcome.error], "ratio")
        figures[f"predicted_{place}"] = Figure.of([outcome.predicted], "tokens/s")
        figures[f"measured_{place}"] = Figure.of(outcome.measured, "tokens/s")
    print_figures(figures)
    table = verdict.table()
    print(table)
    if write:
        page = (Path(__file__).parent / "page.md").read_text().replace("{picks}", table)
        details = {
            _key(split): {
                "profile": measurements.profile(split).model_dump(mode="json"),
                "windows": [asdict(window) for window in windows],
            }
            for split, windows in measurements.windows.items()
        }
        write_report("planner", figures, page, details)


def _key(split: Split) -> str:
    parts = [f"{name}{size}" for name, size in (("pp", split.pp), ("tp", split.tp), ("sp", split.sp)) if size > 1]
    layers = [str(split.layers[0])] if split.sp > 1 else []
    return "_".join(parts + layers) + ("" if split.micro_batching else "_one_batch")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.planner", description=__doc__)
    parser.add_argument("--model", default="smollm2-135m", help="name, path or Hugging Face id")
    parser.add_argument("--adapter", type=Path, default=Path("models/smollm2-135m/adapter-15"), help="of stage 0")
    parser.add_argument(
        "--layers",
        type=int,
        nargs=2,
        default=[17, 13],
        help="layers of the two stages of PP, and of SP beside the adapter's own",
    )
    parser.add_argument("--batches", type=int, nargs="+", default=[2, 4, 8, 16, 32], help="sequences at once")
    parser.add_argument("--rounds", type=int, default=2, help="visits of each split")
    parser.add_argument("--pairs", type=int, default=2, help="windows of either kind, of each batch and visit")
    parser.add_argument("--seconds", type=float, default=2.0, help="time of each window")
    parser.add_argument("--dtype", default=fast_dtype(), help="precision")
    parser.add_argument("--no-report", action="store_true", help="print the figures, leave the report as it is")
    return parser.parse_args()


if __name__ == "__main__":
    main()
