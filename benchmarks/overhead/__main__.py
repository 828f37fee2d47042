"""``python -m benchmarks.overhead``: what the whole stack costs beside plain vLLM, in one interleaved run.

One stage against in-process vLLM on the same two cores (decode throughput, time to first token), then two stages of
one core each against stock vLLM's own pipeline parallelism (throughput, and how busy the stages are).
"""

import argparse
import asyncio
import statistics
from collections import defaultdict
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

from rich.progress import Progress

from benchmarks.forerun_run import decode_throughput, generate, scrape
from benchmarks.plain_vllm import PlainVllm
from benchmarks.prompts import short_prompts
from benchmarks.report import Figure, print_figures, write_report
from benchmarks.systems import (
    STOCK_PIPELINE,
    THREADS_OF_BOTH_CORES,
    engine_args,
    fast_dtype,
    forerun_config,
    model_folder,
)
from services.cli.background import BackgroundSystem
from services.cli.units import UnitKind
from services.client.client import ForerunClient

BATCHES_ONE_STAGE = (1, 8, 32)
BATCHES_TWO_STAGES = (8, 16, 32)
TTFT_PROMPTS_PER_ROUND = 8
SETTLE_S, WINDOW_S = 0.3, 2.0
"""After the last prefill, and the measured part of a steady batch."""

_BUSY, _IDLE, _OVERHEAD, _STEPS = (
    "forerun_stage_busy_seconds_total",
    "forerun_stage_idle_seconds_total",
    "forerun_stage_overhead_seconds_total",
    "forerun_stage_step_seconds_count",
)

Values = dict[str, list[float]]


def main() -> None:
    """Runs both parts and writes the report."""
    options = _options()
    model = model_folder(options.model)
    values: Values = defaultdict(list)
    parts = [part for stages, part in ((1, _one_stage), (2, _two_stages)) if stages in options.stages]
    with Progress() as progress:
        task = progress.add_task("measuring", total=3 * options.rounds * len(parts))
        for part in parts:
            asyncio.run(part(model, options, values, lambda: progress.advance(task)))
            # After each part, so that a run that is cut off leaves what it measured.
            _report(values, name="overhead" if 1 in options.stages else "overhead-stages", write=not options.no_report)


def _report(values: Values, *, name: str, write: bool) -> None:
    figures = {key: Figure.of(values[key], _unit(key)) for key in sorted(values)}
    print_figures(figures)
    if write:
        write_report(name, figures, (Path(__file__).parent / "page.md").read_text())


async def _one_stage(model: Path, options: argparse.Namespace, values: Values, advance: Callable[[], None]) -> None:
    prompts = short_prompts(model, max(BATCHES_ONE_STAGE))
    # Prompts come again in every round: with their prefixes cached, a round is decoding, which is what is compared.
    plain_args = engine_args(model, options.dtype, enable_prefix_caching=True)
    config = forerun_config(model, 1, options.dtype, enable_prefix_caching=True)
    with PlainVllm(plain_args, THREADS_OF_BOTH_CORES, [0, 1]) as plain, BackgroundSystem(config) as system:
        async with ForerunClient(system.state.router_grpc) as client:
            for _ in range(2):
                await generate(client, prompts, 4)
                plain.generate(prompts, 4)
            for _ in range(options.rounds):
                for batch in BATCHES_ONE_STAGE:
                    # The baseline before and after, since a shared machine's speed drifts within a round.
                    before = decode_throughput(plain.generate(prompts[:batch], options.tokens))
                    ours = decode_throughput(await generate(client, prompts[:batch], options.tokens))
                    after = decode_throughput(plain.generate(prompts[:batch], options.tokens))
                    theirs = (before + after) / 2
                    values[f"decode_ratio_b{batch}"].append(ours / theirs)
                    values[f"plain_self_ratio_b{batch}"].append(after / before)
                    values[f"decode_tokens_per_s_b{batch}"].append(ours)
                    values[f"plain_decode_tokens_per_s_b{batch}"].append(theirs)
                    advance()
                values["added_ttft_ms"].append(await _added_ttft_ms(client, plain, prompts))


async def _added_ttft_ms(client: ForerunClient, plain: PlainVllm, prompts: list[list[int]]) -> float:
    """Of one round; the two sides take turns prompt by prompt, since a shared machine's speed drifts."""
    ours, theirs = [], []
    for prompt in prompts[:TTFT_PROMPTS_PER_ROUND]:
        (answer,) = plain.generate([prompt], 2)
        theirs.append(answer.times[0] - answer.started)
        (answer,) = await generate(client, [prompt], 2)
        ours.append(answer.times[0] - answer.started)
    return 1000 * (statistics.median(ours) - statistics.median(theirs))


async def _two_stages(model: Path, options: argparse.Namespace, values: Values, advance: Callable[[], None]) -> None:
    prompts = short_prompts(model, max(BATCHES_TWO_STAGES))
    # Both compiled: stock vLLM's pipeline does not run in eager mode on a CPU.
    stock_args = engine_args(
        model,
        options.dtype,
        enable_prefix_caching=True,
        pipeline_parallel_size=2,
        enforce_eager=False,
        distributed_executor_backend="mp",
    )
    config = forerun_config(
        model, 2, options.dtype, layer_partition=options.layers, enable_prefix_caching=True, enforce_eager=False
    )
    baseline = nullcontext() if options.without_stock else PlainVllm(stock_args, STOCK_PIPELINE, [0, 1])
    with baseline as stock, BackgroundSystem(config) as system:
        pages = [unit.metrics[0][1] for unit in system.units(UnitKind.STAGE)]
        async with ForerunClient(system.state.router_grpc) as client:
            await generate(client, prompts, 4)
            if stock is not None:
                stock.generate(prompts, 4)
            for _ in range(options.rounds):
                for batch in BATCHES_TWO_STAGES:
                    ours = await _busy_round(client, prompts[:batch], options.tokens, pages, values)
                    values[f"pp2_tokens_per_s_b{batch}"].append(ours)
                    if stock is not None:
                        theirs = decode_throughput(stock.generate(prompts[:batch], options.tokens))
                        values[f"pp2_vs_stock_vllm_b{batch}"].append(ours / theirs)
                        values[f"stock_pp2_tokens_per_s_b{batch}"].append(theirs)
                    advance()


async def _busy_round(
    client: ForerunClient, prompts: list[list[int]], tokens: int, pages: list[str], values: Values
) -> float:
    """One batch; notes how busy each stage was in the middle of it. Returns tokens per second."""
    all_decode = asyncio.Event()
    running = asyncio.create_task(generate(client, prompts, tokens, all_decode=all_decode))
    await all_decode.wait()
    await asyncio.sleep(SETTLE_S)
    before = [await asyncio.to_thread(scrape, [page], "forerun_stage_") for page in pages]
    await asyncio.sleep(WINDOW_S)
    after = [await asyncio.to_thread(scrape, [page], "forerun_stage_") for page in pages]
    if running.done():
        raise RuntimeError("the batch ended before the stages were measured; raise --tokens")
    answers = await running
    busy, overhead = [], []
    for earlier, later in zip(before, after, strict=True):
        spent = {name: later[name] - earlier[name] for name in (_BUSY, _IDLE, _OVERHEAD, _STEPS)}
        busy.append(spent[_BUSY] / (spent[_BUSY] + spent[_IDLE] + spent[_OVERHEAD]))
        overhead.append(1000 * spent[_OVERHEAD] / spent[_STEPS])
    values[f"stage_busy_b{len(prompts)}"].append(min(busy))
    values["step_overhead_ms"].append(max(overhead))
    return decode_throughput(answers)


def _unit(name: str) -> str:
    if name.endswith("_ms"):
        return "ms"
    if "tokens_per_s" in name:
        return "tokens/s"
    return "ratio"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overhead", description=__doc__)
    parser.add_argument("--model", default="smollm2-135m", help="name, path or Hugging Face id")
    parser.add_argument("--rounds", type=int, default=5, help="interleaved repetitions of everything")
    parser.add_argument("--tokens", type=int, default=64, help="tokens of each answer")
    parser.add_argument("--dtype", default=fast_dtype(), help="precision of all sides")
    parser.add_argument("--stages", type=int, nargs="+", default=[1, 2], choices=[1, 2], help="parts to run")
    parser.add_argument("--layers", type=int, nargs=2, default=[17, 13], help="layers of the two stages")
    parser.add_argument("--without-stock", action="store_true", help="two stages without stock vLLM's, which compiles")
    parser.add_argument("--no-report", action="store_true", help="print the figures, leave the report as it is")
    return parser.parse_args()


if __name__ == "__main__":
    main()
