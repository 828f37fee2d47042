"""``python -m benchmarks.equality``: Forerun's text against plain vLLM's, token for token, at temperature 0.

A hundred varied prompts (chat, code, maths, 1,000 to 4,000 tokens), each alone and eight at a time, through one and
two stages. In float32 every token must agree. In bf16 kernels round differently by batch shape, so plain vLLM does
not even agree with itself at another batch size: that disagreement is the measure for ours.

``--speculate`` compares stages that speculate with the same ones that do not instead (``speculation.py``).
"""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

from rich.console import Console

from benchmarks.equality import speculation
from benchmarks.forerun_run import generate
from benchmarks.plain_vllm import PlainVllm
from benchmarks.prompts import varied_prompts
from benchmarks.report import Figure, write_report
from benchmarks.systems import THREADS_OF_BOTH_CORES, engine_args, forerun_config, model_folder
from services.cli.background import BackgroundSystem
from services.client.client import ForerunClient

AT_A_TIME = 8
OTHER_BATCHES = (2, 4)
"""At which plain vLLM is compared with itself, too."""
STAGES = (1, 2)
SEEDS = (7, 8)
PROMPTS = {"float32": 100, "bfloat16": 100}
TOKENS = 32
SPECULATION_PROMPTS = {"float32": 200, "bfloat16": 0}
SPECULATION_TOKENS = 16

Texts = list[list[int]]
console = Console(stderr=True)


def main() -> None:
    """Runs both precisions, each with a report of its own; exit code 1 when a float32 token differs."""
    options = _options()
    model = model_folder(options.model)
    if options.speculate:
        sys.exit(0 if speculation.compare(_speculation_plan(model, options)) else 1)
    differing = 0.0
    for dtype, count in _prompts(options, PROMPTS).items():
        figures = _compare(model, dtype, varied_prompts(model, count), options.tokens or TOKENS)
        for name, figure in figures.items():
            print(f"{name:40} {figure.median:g} {figure.unit}")
        if not options.no_report:
            write_report(f"equality-{dtype}", figures, (Path(__file__).parent / "page.md").read_text())
        differing += sum(figure.median for name, figure in figures.items() if name.startswith("float32_differing"))
    sys.exit(1 if differing else 0)


def _compare(model: Path, dtype: str, prompts: Texts, tokens: int) -> dict[str, Figure]:
    console.print(f"{dtype}: plain vLLM")
    args = engine_args(model, dtype, enable_prefix_caching=False)
    with PlainVllm(args, THREADS_OF_BOTH_CORES, [0, 1]) as plain:
        by_batch = {
            size: [answer.tokens for group in _groups(prompts, size) for answer in plain.generate(group, tokens)]
            for size in (1, *OTHER_BATCHES, AT_A_TIME)
        }
    alone, together = by_batch[1], by_batch[AT_A_TIME]
    figures = {
        f"{dtype}_plain_vllm_self_differing_{one}_{other}": _differing(by_batch[one], by_batch[other])
        for one, other in combinations(by_batch, 2)
    }
    for stages in STAGES:
        console.print(f"{dtype}: Forerun, {stages} stage(s)")
        ours_alone, ours_together, seeded = asyncio.run(_forerun(model, dtype, stages, prompts, tokens))
        figures[f"{dtype}_differing_pp{stages}_alone"] = _differing(alone, ours_alone)
        figures[f"{dtype}_differing_pp{stages}_together"] = _differing(together, ours_together)
        same, again, other = seeded
        figures[f"{dtype}_seeded_pp{stages}_same_seed_differing"] = _differing(same, again)
        figures[f"{dtype}_seeded_pp{stages}_other_seed_differing"] = _differing(same, other)
    return figures


async def _forerun(
    model: Path, dtype: str, stages: int, prompts: Texts, tokens: int
) -> tuple[Texts, Texts, tuple[Texts, Texts, Texts]]:
    with BackgroundSystem(forerun_config(model, stages, dtype, enable_prefix_caching=False)) as system:
        async with ForerunClient(system.state.router_grpc) as client:

            async def texts(group: Texts, **how: int | bool) -> Texts:
                return [answer.tokens for answer in await generate(client, group, tokens, **how)]  # type: ignore[arg-type]

            alone = await texts(prompts, one_by_one=True)
            together = [each for group in _groups(prompts) for each in await texts(group)]
            few = prompts[:AT_A_TIME]
            seeded = (
                await texts(few, seed=SEEDS[0], one_by_one=True),
                await texts(few, seed=SEEDS[0], one_by_one=True),
                await texts(few, seed=SEEDS[1], one_by_one=True),
            )
    return alone, together, seeded


def _groups(prompts: Texts, size: int = AT_A_TIME) -> list[Texts]:
    return [prompts[start : start + size] for start in range(0, len(prompts), size)]


def _differing(expected: Sequence[list[int]], actual: Sequence[list[int]]) -> Figure:
    """How many of the answers differ in at least one token."""
    pairs = list(zip(expected, actual, strict=True))
    count = float(sum(one != other for one, other in pairs))
    return Figure(count, count, count, f"of {len(pairs)} answers", 1)


def _prompts(options: argparse.Namespace, default: dict[str, int]) -> dict[str, int]:
    """Their number by precision, without those of which there are none."""
    asked = {"float32": options.prompts, "bfloat16": options.bfloat16_prompts}
    counts = {dtype: default[dtype] if count is None else count for dtype, count in asked.items()}
    return {dtype: count for dtype, count in counts.items() if count}


def _speculation_plan(model: Path, options: argparse.Namespace) -> speculation.Plan:
    return speculation.Plan(
        model,
        options.speculate,
        options.stages,
        _prompts(options, SPECULATION_PROMPTS),
        options.tokens or SPECULATION_TOKENS,
        report=not options.no_report,
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.equality", description=__doc__)
    parser.add_argument("--model", default="smollm2-135m", help="name, path or Hugging Face id")
    parser.add_argument("--prompts", type=int, help="number of prompts in float32; 0: none")
    parser.add_argument("--bfloat16-prompts", type=int, help="number of prompts in bfloat16; 0: none")
    parser.add_argument("--tokens", type=int, help="tokens of each answer")
    parser.add_argument(
        "--speculate",
        nargs="+",
        metavar="ADAPTER",
        help="compare stages that speculate with the same ones that do not: folders of draft adapters, and "
        f"{speculation.RANDOM!r} for an untrained one where none is for that number of stages",
    )
    parser.add_argument("--stages", type=int, nargs="+", default=[2, 3, 4], help="numbers of stages that speculate")
    parser.add_argument("--no-report", action="store_true", help="print the figures, leave the report as it is")
    return parser.parse_args()


if __name__ == "__main__":
    main()
