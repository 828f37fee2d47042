"""``python -m benchmarks.stack_cost``: the processor time of a step outside the model, and the time to a first token.

Two stages over synthetic devices, which sleep in the model's place, so that all that is left is the stack's own work.
Processor time, unlike wall time, hardly changes with what else runs on the machine.
"""

import argparse
import asyncio
import os
import statistics
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import psutil
from rich.progress import Progress

from benchmarks.forerun_run import generate, scrape
from benchmarks.prompts import short_prompts
from benchmarks.report import Figure, print_figures, write_report
from benchmarks.stack_cost.echo import message_cost_ms
from benchmarks.stack_cost.processor_time import processor_ms
from benchmarks.systems import forerun_config, model_folder
from services.cli.background import BackgroundSystem
from services.cli.units import UnitKind
from services.client.client import ForerunClient

ROWS = (1, 8, 32)
"""Requests in each step; two micro-batches of them are in flight."""
STAGES = 2
DEVICE_MS = 20.0
ALONE = 12
"""Requests one after another."""
SETTLE_S, WINDOW_S = 1.0, 3.0
TOKENS = 350
"""More than a window takes."""
PREFIX = "forerun_stage_"
STEPS, OVERHEAD = "forerun_stage_step_seconds_count", "forerun_stage_overhead_seconds_total"

Values = dict[str, list[float]]


def main() -> None:
    """Measures each batch size and writes the report."""
    options = _options()
    values: Values = defaultdict(list)
    with Progress() as progress:
        task = progress.add_task("measuring", total=len(ROWS) * options.rounds)
        asyncio.run(_measure(model_folder(options.model), options.rounds, values, lambda: progress.advance(task)))
    values["grpc_message_end_ms"] = asyncio.run(message_cost_ms(options.rounds))
    figures = {key: Figure.of(values[key], "ms") for key in sorted(values)}
    print_figures(figures)
    if not options.no_report:
        write_report("stack-cost", figures, (Path(__file__).parent / "page.md").read_text())


async def _measure(model: Path, rounds: int, values: Values, advance: Callable[[], None]) -> None:
    prompts = short_prompts(model, 2 * max(ROWS))
    with BackgroundSystem(_config(model)) as system:
        processes = _processes(system)
        async with ForerunClient(system.state.router_grpc) as client:
            await generate(client, prompts, 4)
            for _ in range(rounds):
                values["first_token_ms"].append(await _first_token_ms(client, prompts))
            for rows in ROWS:
                for _ in range(rounds):
                    running = asyncio.create_task(generate(client, prompts[: 2 * rows], TOKENS))
                    await asyncio.sleep(SETTLE_S)
                    for name, cost in (await _window(system, processes)).items():
                        values[f"{name}_ms_b{rows}"].append(cost)
                    running.cancel()
                    await asyncio.wait([running])
                    advance()


async def _first_token_ms(client: ForerunClient, prompts: list[list[int]]) -> float:
    """Of one request on an idle system whose prefix is cached, without the time of the devices."""
    answers = await generate(client, prompts[:ALONE], 1, one_by_one=True)
    return 1000 * statistics.median(each.times[0] - each.started for each in answers) - STAGES * DEVICE_MS


async def _window(system: BackgroundSystem, processes: dict[int, str]) -> dict[str, float]:
    """Milliseconds for each step: of a core, by process and for all, and of wall time, on the worse stage.

    Stages are their mean, since each step passes both.
    """
    stages = [[page for _, page in unit.metrics] for unit in system.units(UnitKind.STAGE)]
    pages_before = [scrape(pages, PREFIX) for pages in stages]
    before = {process_id: processor_ms(process_id) for process_id in processes}
    await asyncio.sleep(WINDOW_S)
    used: dict[str, float] = defaultdict(float)
    for process_id, name in processes.items():
        used[name] += processor_ms(process_id) - before[process_id]
    used["stage"] /= len(stages)
    pages_after = [scrape(pages, PREFIX) for pages in stages]
    steps, overheads = (
        [after[key] - begun[key] for begun, after in zip(pages_before, pages_after, strict=True)]
        for key in (STEPS, OVERHEAD)
    )
    costs = {name: cost / statistics.mean(steps) for name, cost in used.items()}
    worst = max(1000 * overhead / count for overhead, count in zip(overheads, steps, strict=True))
    return costs | {"all": sum(costs.values()), "step_overhead": worst}


def _processes(system: BackgroundSystem) -> dict[int, str]:
    """By process id: whose it is. The scheduler's child is the engine core."""
    kinds = {unit.pid: unit.kind.value for unit in system.state.units}
    cores = {child.pid: "engine_core" for unit in system.units(UnitKind.SCHEDULER) for child in _children(unit.pid)}
    return kinds | cores | {os.getpid(): "client"}


def _children(process_id: int) -> list[psutil.Process]:
    return psutil.Process(process_id).children(recursive=True)


def _config(model: Path) -> dict[str, object]:
    config = forerun_config(model, STAGES, "float32", enable_prefix_caching=True)
    device = {"step": {"rows": [1, 1000], "ms": [DEVICE_MS, DEVICE_MS]}}
    config["replicas"][0] |= {"cores": "all", "stage": {"synthetic": device}}
    return config


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stack_cost", description=__doc__)
    parser.add_argument("--model", default="smollm2-135m", help="name, path or Hugging Face id")
    parser.add_argument("--rounds", type=int, default=5, help="windows at each batch size")
    parser.add_argument("--no-report", action="store_true", help="print the figures, leave the report as it is")
    return parser.parse_args()


if __name__ == "__main__":
    main()
