"""``python -m benchmarks.prefix_routing``: do conversations find their replica again?

Conversations of several turns, a few at a time, over one replica, over several with routing by prefix, and over several
without. What counts is the share of prompt tokens that the replicas found in their caches.
"""

import argparse
import asyncio
import random
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from rich.progress import Progress

from benchmarks.forerun_run import scrape
from benchmarks.questions import chat_prompts
from benchmarks.report import Figure, print_figures, write_report
from benchmarks.sp.systems import ForerunSystem
from benchmarks.systems import forerun_config, model_folder
from services.cli.units import UnitKind
from services.client.client import ForerunClient
from services.common.types import Delta, SamplingOptions

NAME = "prefix-routing"
ONE, BY_PREFIX, BY_LOAD = "one", "by_prefix", "by_load"
BLOCK_SIZE = 32
"""As few as vLLM takes on a CPU."""
ANSWER_TOKENS = 12
QUESTION_TOKENS = 64
AT_ONCE = 4
"""Conversations at a time."""
THINKING_S = (0.1, 0.6)
"""Between an answer and the next question."""


def main() -> None:
    """Measures each system and writes the report."""
    options = _options()
    shares: dict[str, list[float]] = {ONE: [], BY_PREFIX: [], BY_LOAD: []}
    with Progress() as progress:
        task = progress.add_task("conversations", total=len(shares) * options.rounds)
        for number in range(options.rounds):
            for name, values in shares.items():
                values.append(asyncio.run(_measure(name, options, seed=number)))
                progress.advance(task)
    figures = {
        "prefix_hits_vs_one_replica": Figure.of(_ratios(shares[BY_PREFIX], shares[ONE]), "ratio"),
        "load_hits_vs_one_replica": Figure.of(_ratios(shares[BY_LOAD], shares[ONE]), "ratio"),
        **{f"{name}_hit_share": Figure.of(values, "ratio") for name, values in shares.items()},
    }
    print_figures(figures)
    if not options.no_report:
        write_report(NAME, figures, (Path(__file__).parent / "page.md").read_text())


async def _measure(name: str, options: argparse.Namespace, seed: int) -> float:
    """The share of prompt tokens that were found cached. Each system starts with empty caches."""
    model = model_folder(options.model)
    config = forerun_config(
        model,
        1,
        "float32",
        max_model_len=2048,
        max_num_seqs=8,
        kv_cache_memory_bytes=96 << 20,
        block_size=BLOCK_SIZE,
        enable_prefix_caching=True,
    )
    config["replicas"] *= 1 if name == ONE else options.replicas
    config["router"]["prefix_weight"] = 0.0 if name == BY_LOAD else 0.5
    questions = chat_prompts(model)
    rng = random.Random(seed)
    rng.shuffle(questions)
    async with ForerunSystem(config) as system:
        waiting = iter(range(options.conversations))

        async def talk() -> None:
            with suppress(StopIteration):
                while True:
                    first = next(waiting) * options.turns
                    await _conversation(system.client, questions[first : first + options.turns], rng)

        await asyncio.gather(*(talk() for _ in range(AT_ONCE)))
        pages = [unit.metrics[0][1] for unit in system.background.units(UnitKind.SCHEDULER)]
        counts = await asyncio.to_thread(scrape, pages, "vllm:prefix_cache_")
    return counts["vllm:prefix_cache_hits_total"] / counts["vllm:prefix_cache_queries_total"]


async def _conversation(client: ForerunClient, questions: Sequence[Sequence[int]], rng: random.Random) -> None:
    said: list[int] = []
    for question in questions:
        said += question[:QUESTION_TOKENS]
        sampling = SamplingOptions(temperature=0.0, max_tokens=ANSWER_TOKENS, ignore_eos=True)
        async for event in client.generate(tuple(said), sampling):
            if isinstance(event, Delta):
                said += event.token_ids
        await asyncio.sleep(rng.uniform(*THINKING_S))


def _ratios(mine: Sequence[float], theirs: Sequence[float]) -> list[float]:
    return [one / other for one, other in zip(mine, theirs, strict=True)]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.prefix_routing", description=__doc__)
    parser.add_argument("--model", default="smollm2-135m", help="name, path or Hugging Face id")
    parser.add_argument("--replicas", type=int, default=3, help="beside the one")
    parser.add_argument("--conversations", type=int, default=16, help="in each round")
    parser.add_argument("--turns", type=int, default=5, help="of each conversation")
    parser.add_argument("--rounds", type=int, default=2, help="interleaved repetitions, with other conversations")
    parser.add_argument("--no-report", action="store_true", help="print the figures, leave the report as it is")
    return parser.parse_args()


if __name__ == "__main__":
    main()
