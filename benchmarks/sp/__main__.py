"""``python -m benchmarks.sp``: what speculation gains over the same two stages without it, on this machine's cores.

All systems take turns with the same prompts, at the same KV memory, one stage a core: SP, our pipeline with
micro-batches and with one whole batch, stock vLLM's pipeline, and one process on both cores.
"""

import argparse
import asyncio
import sys
from pathlib import Path

from rich.progress import Progress

from benchmarks.report import REPORTS, print_figures, write_report
from benchmarks.sp.benchmark import SYSTEMS, Benchmark, Options
from benchmarks.sp.findings import Findings
from benchmarks.sp.related import figures_of_speculation
from benchmarks.sp.systems import read_adapter
from benchmarks.systems import fast_dtype, model_folder
from services.common.errors import ConfigError
from services.scheduler.speculation_config import SpeculationConfig

NAME = "sp"
PARTS = ("throughput", "breakdown", "latency")


def main() -> int:
    """Runs the parts and writes the report after each. Returns the exit code."""
    arguments = _arguments()
    try:
        adapter = read_adapter(arguments.adapter)
        findings = Findings(
            details={
                "adapter": adapter.model_dump(mode="json"),
                "drop_fraction": arguments.drop_fraction,
                "eager": arguments.eager,
            }
        )
        with Progress() as progress:
            benchmark = Benchmark(_options(arguments), adapter.target_layers, findings, progress)
            asyncio.run(_run(benchmark, arguments.parts, arguments.adapter, findings, write=not arguments.no_report))
    except (ConfigError, MemoryError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


async def _run(benchmark: Benchmark, parts: list[str], adapter: Path, findings: Findings, *, write: bool) -> None:
    await benchmark.splits()
    for part in parts:
        await getattr(benchmark, part)()
        # After each part, so that a run that is cut off leaves what it measured.
        _report(findings, adapter, write=write)


def _report(findings: Findings, adapter: Path, *, write: bool) -> None:
    related, origins = figures_of_speculation(adapter)
    figures = findings.figures() | related
    print_figures(figures)
    if write:
        write_report(
            NAME, figures, (Path(__file__).parent / "page.md").read_text(), findings.details | {"related": origins}
        )


def _options(arguments: argparse.Namespace) -> Options:
    return Options(
        model=model_folder(arguments.model),
        dtype=arguments.dtype,
        eager=arguments.eager,
        adapter=arguments.adapter,
        drop_fraction=arguments.drop_fraction,
        systems=arguments.systems,
        batches=arguments.batches,
        rounds=arguments.rounds,
        tokens=arguments.tokens,
        splits=arguments.splits,
        latency_batch=arguments.latency_batch,
        latency_rounds=arguments.latency_rounds,
        plot=None if arguments.no_report else REPORTS / f"{NAME}-latency.svg",
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sp", description=__doc__)
    parser.add_argument("--model", default="smollm2-135m", help="name, path or Hugging Face id")
    parser.add_argument(
        "--adapter", type=Path, default=Path("models/smollm2-135m/adapter-15"), help="the draft adapter's folder"
    )
    parser.add_argument(
        "--drop-fraction",
        type=_drop_fraction,
        default=SpeculationConfig.model_fields["drop_fraction"].default,
        help="of the drafts, or auto; as in the configuration",
    )
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=PARTS)
    parser.add_argument("--systems", nargs="+", default=list(SYSTEMS), choices=SYSTEMS, help="of the throughput part")
    parser.add_argument("--batches", type=int, nargs="+", default=[2, 4, 8, 16, 32])
    parser.add_argument("--rounds", type=int, default=3, help="interleaved repetitions of everything but latency")
    parser.add_argument("--tokens", type=int, default=64, help="tokens of each answer; half as many beyond batch 8")
    parser.add_argument(
        "--splits",
        type=int,
        nargs="+",
        default=[16, 17, 18],
        help="layers of our pipelines' first stage; of several each pipeline's fastest is found first",
    )
    parser.add_argument("--latency-batch", type=int, help="default: the batch at which speculation gained most, else 4")
    parser.add_argument("--latency-rounds", type=int, default=2, help="interleaved repetitions of every arrival rate")
    parser.add_argument("--dtype", default=fast_dtype(), help="precision of all systems")
    parser.add_argument("--eager", action="store_true", help="compile nothing but stock vLLM, which needs it on a CPU")
    parser.add_argument("--no-report", action="store_true", help="print the figures, leave the report as it is")
    return parser.parse_args()


def _drop_fraction(text: str) -> float | str:
    return text if text == "auto" else float(text)


if __name__ == "__main__":
    sys.exit(main())
