"""``python -m benchmarks.sp_synthetic``: speculation over micro-batches where two cores cannot be the limit.

Two whole replicas over the same synthetic devices, one with micro-batches and one that speculates, take turns with the
same prompts at the same KV memory. Everything but the devices' work is real, and every answer is checked.
"""

import argparse
import asyncio
from collections import defaultdict
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from rich.progress import Progress

from benchmarks.report import Figure, print_figures, write_report
from benchmarks.sp_synthetic.batch_run import Measured, Replica, connect
from benchmarks.sp_synthetic.devices import Split, splits
from benchmarks.systems import forerun_config, model_folder
from services.cli.background import BackgroundSystem
from services.cli.units import UnitKind
from services.common.config import TelemetryConfig
from services.common.logs import setup_logging

BATCH_TOKENS = {32: 64, 64: 48, 128: 32, 256: 32}
"""Tokens of each answer by batch: as many as the acceptance within the window needs to be near its mean."""
HEADLINE = {2: 0.7, 4: 0.6}
"""Acceptance by stages, within the published 0.60 to 0.79 with half of the layers and 0.51 to 0.63 with a quarter."""
OTHERS_BATCH = 64
"""At which other acceptances are measured."""
WARM_UP_TOKENS = 32

Values = dict[str, list[float]]


def main() -> None:
    """Measures every pair and writes the report."""
    options = _options()
    setup_logging("sp-synthetic", TelemetryConfig(log_format="console", log_level="warning"))
    values: Values = defaultdict(list)
    pairs = [
        (stages, acceptance)
        for stages in options.stages
        for acceptance in ([HEADLINE[stages]] if options.headline_only else options.acceptance)
    ]
    with Progress() as progress:
        task = progress.add_task("measuring", total=len(pairs))
        for stages, acceptance in pairs:
            asyncio.run(_pair(stages, acceptance, options, values))
            progress.advance(task)
            # After each pair, so that a run that is cut off leaves what it measured.
            _report(values, options)


async def _pair(stages: int, acceptance: float, options: argparse.Namespace, values: Values) -> None:
    """Interleaved rounds of both replicas at one acceptance."""
    is_headline = acceptance == HEADLINE[stages]
    batches = options.batches if is_headline else [OTHERS_BATCH]
    label = f"p{stages}" if is_headline else f"p{stages}_a{round(100 * acceptance)}"
    pair = splits(stages, acceptance, options.slow_down)
    async with AsyncExitStack() as stack:
        pp, sp = [await _start(stack, split, stages) for split in pair]
        for replica in (pp, sp):
            await replica.run(min(batches), WARM_UP_TOKENS, seed=0)
        for number in range(1, options.rounds + 1):
            for batch in batches:
                seed = 1000 * number + batch
                runs = [await replica.run(batch, BATCH_TOKENS[batch], seed) for replica in (pp, sp)]
                compared = _compare(batch, pair, runs)
                for name, value in compared.items():
                    values[f"{name}_{label}_b{batch}"].append(value)
                if is_headline:
                    values[f"synthetic_sp_vs_pp_p{stages}"].append(compared["sp_vs_pp"])
                    values["synthetic_vs_closed_form"].append(compared["sp_vs_closed_form"])


def _compare(batch: int, pair: Sequence[Split], runs: Sequence[Measured]) -> dict[str, float]:
    """The figures of one batch, which first PP and then SP has run."""
    pp, sp = runs
    ideal_pp, ideal_sp = (split.closed_form(batch, run.acceptance) for split, run in zip(pair, runs, strict=True))
    return {
        "sp_vs_pp": sp.tokens_per_s / pp.tokens_per_s,
        "closed_form_sp_vs_pp": ideal_sp.tokens_per_s / ideal_pp.tokens_per_s,
        "sp_vs_closed_form": sp.tokens_per_s / ideal_sp.tokens_per_s,
        "pp_vs_closed_form": pp.tokens_per_s / ideal_pp.tokens_per_s,
        "sp_tokens_per_s": sp.tokens_per_s,
        "pp_tokens_per_s": pp.tokens_per_s,
        "sp_acceptance": sp.acceptance,
        "sp_step_ms": ideal_sp.step_ms,
        # As if all that is missing were lost between the steps.
        "sp_lost_ms": ideal_sp.step_ms * (ideal_sp.tokens_per_s / sp.tokens_per_s - 1),
    }


async def _start(stack: AsyncExitStack, split: Split, stages: int) -> Replica:
    """A whole system over synthetic devices; the router that belongs to it stays idle."""
    system = BackgroundSystem(_config(split, stages))
    await asyncio.to_thread(system.start)
    stack.push_async_callback(asyncio.to_thread, system.stop)
    (scheduler,) = system.units(UnitKind.SCHEDULER)
    pages = [address for _, address in scheduler.metrics]
    return await stack.enter_async_context(connect(scheduler.replica_id or "", scheduler.address, pages))


def _config(split: Split, stages: int) -> dict[str, Any]:
    # Of the model only the shape of the KV cache and the vocabulary matter.
    model = model_folder("smollm2-135m")
    config = forerun_config(
        model, stages, "float32", enable_prefix_caching=False, max_num_seqs=max(BATCH_TOKENS), max_model_len=1024
    )
    config["redis"] = {"start": False}
    config["router"]["tokenizer"] = False
    replica = config["replicas"][0]
    replica |= {"cores": "all", "stage": {"synthetic": split.synthetic}}
    if split.profile.sp > 1:
        replica["speculation"] = {"draft_adapter": "synthetic", "mode": "always", "drop_fraction": 0.0}
    return config


def _report(values: Values, options: argparse.Namespace) -> None:
    figures = {key: Figure.of(values[key], _unit(key)) for key in sorted(values, key=_in_order)}
    print_figures(figures)
    if not options.no_report:
        details = {
            f"stages_{stages}": {
                name: split.profile.model_dump(mode="json")
                for name, split in zip(("pp", "sp"), splits(stages, HEADLINE[stages], options.slow_down), strict=True)
            }
            for stages in options.stages
        }
        write_report("sp-synthetic", figures, (Path(__file__).parent / "page.md").read_text(), details)


def _in_order(key: str) -> tuple[bool, str, int]:
    """The headlines first, then by comparison and batch."""
    comparison, _, batch = key.partition("_b")
    return not key.startswith("synthetic"), comparison, int(batch or 0)


def _unit(key: str) -> str:
    if "tokens_per_s" in key:
        return "tokens/s"
    return "ms" if "_ms_" in key else "ratio"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sp_synthetic", description=__doc__)
    parser.add_argument("--stages", type=int, nargs="+", default=[2, 4], choices=[2, 4])
    parser.add_argument("--acceptance", type=float, nargs="+", default=[0.6, 0.7, 0.8], help="share of right drafts")
    parser.add_argument("--headline-only", action="store_true", help="only the acceptance of the headline figures")
    parser.add_argument("--batches", type=int, nargs="+", default=list(BATCH_TOKENS), choices=list(BATCH_TOKENS))
    parser.add_argument("--rounds", type=int, default=3, help="interleaved repetitions of everything")
    parser.add_argument("--slow-down", type=float, default=4.0, help="times that a device is slower than the GPU")
    parser.add_argument("--no-report", action="store_true", help="print the figures, leave the report as it is")
    return parser.parse_args()


if __name__ == "__main__":
    main()
