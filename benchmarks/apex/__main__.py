"""``python -m benchmarks.apex``: what APEX's profiles gain over every fixed expert and depth, on prompts of the tests.

One system serves all fixed settings, by what requests pin, and each profile has a system of its own; they take turns.
"""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.progress import Progress

from benchmarks.apex.figures import figures_of, tables
from benchmarks.apex.measure import Measurement, groups_of
from benchmarks.apex.plot import draw_planes
from benchmarks.apex.settings import (
    FIXED,
    PROFILES,
    fixed_experts,
    fixed_settings,
    profile_experts,
    profile_of,
    profile_settings,
    system_config,
)
from benchmarks.report import REPORTS, print_figures, write_report
from benchmarks.sp.systems import ForerunSystem
from benchmarks.systems import fast_dtype, model_folder
from services.cli.errors import CliError
from services.cli.grid.system import engine_arguments, experts_of
from services.cli.paths import cache_dir
from services.cli.train_options import download
from services.common.errors import ConfigError
from services.common.expert import Expert
from services.common.workloads.prompt import WorkloadPrompt
from services.common.workloads.store import WORKLOADS, WorkloadStore

NAME = "apex"


def main() -> int:
    """Runs the rounds and writes the report after each. Returns the exit code."""
    options = _options()
    try:
        asyncio.run(_run(options))
    except (CliError, ConfigError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


async def _run(options: argparse.Namespace) -> None:
    settings = fixed_settings(options.drafter_kind, options.depths)
    settings += profile_settings(options.profiles, options.per_block, options.route_model is not None)
    groups = {
        batch: groups_of(_prompts(options, "test", batch), batch, _count(options, batch)) for batch in options.batches
    }
    learnt = _prompts(options, "validation", 1)
    rest = {workload: prompts[: options.choosing_prompts] for workload, prompts in learnt.items()}
    profiles = sorted({each.system for each in settings} - {FIXED})
    steps = 1 + len(profiles) * (1 + len(rest)) + options.rounds * sum(map(len, groups.values()))
    with Progress() as progress:
        task = progress.add_task("start the systems", total=steps)

        def advance() -> None:
            progress.advance(task)

        async with AsyncExitStack() as stack:
            clients = {}
            for name, config in _configs(options, profiles).items():
                clients[name] = (await stack.enter_async_context(ForerunSystem(config))).client
                advance()
            measurement = Measurement(clients, settings, options.tokens)
            progress.update(task, description="choose experts")
            pins = [None] if options.route_model is not None else _drafting(options)
            await measurement.choose_experts(rest, pins, advance)
            progress.update(task, description="measure")
            for number in range(options.rounds):
                await measurement.round(groups, number, advance)
                # After each round, so that a run that is cut off leaves what it measured.
                _report(measurement, options)


def _configs(options: argparse.Namespace, profiles: Sequence[str]) -> dict[str, dict[str, Any]]:
    drafting = experts_of(options.drafter_kind, options.drafter)
    experts = {FIXED: fixed_experts(drafting)} | {
        each: profile_experts(drafting, each, _depth_model(options, each), options.depth_score) for each in profiles
    }
    model, more = model_folder(options.model), engine_arguments(options.engine_arg)
    configs = {
        name: system_config(model, options.dtype, max(options.batches), each, more) for name, each in experts.items()
    }
    if options.route_model is not None:
        for each in set(profiles) & set(PROFILES):
            route = {"model": str(options.route_model.resolve()), "profile": PROFILES[each]}
            configs[each]["router"]["experts"] = route
    return configs


def _depth_model(options: argparse.Namespace, system: str) -> Path | None:
    """A folder of the system's profile below the given one, where there is one, else that itself."""
    if options.depth_model is None:
        return None
    own = options.depth_model / profile_of(system)
    return own if own.is_dir() else options.depth_model


def _drafting(options: argparse.Namespace) -> list[Expert]:
    return [Expert.NGRAM, *([] if options.drafter_kind is None else [Expert(options.drafter_kind)])]


def _count(options: argparse.Namespace, batch: int) -> int:
    """Groups of a workload: as many requests alone as asked for, and one crowd."""
    return options.prompts if batch == 1 else 1


def _prompts(options: argparse.Namespace, split: Any, batch: int) -> dict[str, list[WorkloadPrompt]]:
    """Those of bearable length. Raises ``ConfigError`` where there are not enough of them."""
    store = WorkloadStore(cache_dir(options.cache_dir), download)
    found = {}
    for workload in options.workloads:
        found[workload] = [
            each
            for each in store.prompts(workload, split)
            if sum(len(turn.content) for turn in each.messages) <= options.prompt_characters
        ]
        if len(found[workload]) < batch * _count(options, batch):
            raise ConfigError(f"{workload}: has too few prompts of --prompt-characters {options.prompt_characters}")
    return found


def _report(measurement: Measurement, options: argparse.Namespace) -> None:
    runs, settings = measurement.runs, measurement.settings
    depth_model = None if not options.profiles else _depth_model(options, options.profiles[0])
    figures = figures_of(runs, settings, depth_model)
    print_figures(figures)
    text = tables(runs, settings)
    if options.no_report:
        print(text)
        return
    draw_planes(runs, settings, REPORTS / f"{NAME}-planes.svg")
    page = (Path(__file__).parent / "page.md").read_text().replace("{tables}", text)
    details = {
        "options": {name: str(value) for name, value in vars(options).items()},
        "experts": measurement.experts,
        "runs": [asdict(run) for run in runs],
    }
    write_report(NAME, figures, page, details)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.apex", description=__doc__)
    parser.add_argument("--model", default="smollm2-135m", help="name, path or Hugging Face id")
    parser.add_argument("--drafter-kind", choices=["eagle3", "draft_model"], help="without one: n-grams alone")
    parser.add_argument("--drafter", help="the neural drafter's folder or Hugging Face id")
    parser.add_argument(
        "--depth-model", type=Path, help="a depth model's folder, or one with a folder for each profile (speed, ...)"
    )
    parser.add_argument("--depth-score", choices=["rate", "utility"], default="rate", help="as in the configuration")
    parser.add_argument(
        "--route-model", type=Path, help="chooses each request's expert; without one: the best of its workload"
    )
    parser.add_argument("--depths", type=int, nargs="+", default=[4, 16], help="of the fixed settings")
    parser.add_argument("--profiles", nargs="*", default=list(PROFILES), choices=list(PROFILES))
    parser.add_argument("--per-block", nargs="*", default=["s"], choices=list(PROFILES), help="also with free experts")
    parser.add_argument("--workloads", nargs="+", default=list(WORKLOADS), choices=WORKLOADS)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--prompts", type=int, default=1, help="of each workload at batch 1; one group at others")
    parser.add_argument("--choosing-prompts", type=int, default=1, help="of each workload, to choose its expert by")
    parser.add_argument("--prompt-characters", type=int, default=2500, help="longer prompts are left out")
    parser.add_argument("--tokens", type=int, default=32, help="of an answer at most")
    parser.add_argument("--rounds", type=int, default=3, help="interleaved repetitions")
    parser.add_argument("--dtype", default=fast_dtype(), help="precision of all systems")
    parser.add_argument("--engine-arg", nargs="+", default=[], metavar="NAME=VALUE", help="vLLM engine arguments")
    parser.add_argument("--cache-dir", type=Path, help="default: $FORERUN_CACHE, else forerun in your cache folder")
    parser.add_argument("--no-report", action="store_true", help="print the figures, leave the report as it is")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
