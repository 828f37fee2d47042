"""Each piece of speculation switched on in turn, over the same pipeline without it."""

from rich.progress import Progress

from benchmarks.sp.comparison import Workload, compare, started
from benchmarks.sp.findings import Findings
from benchmarks.sp.systems import System

BATCHES = (4, 8)
BASE = "micro"


async def measure_breakdown(
    pieces: dict[str, System], base: System, workload: Workload, rounds: int, findings: Findings, progress: Progress
) -> None:
    """``pieces``: by name, each with one piece more than the one before; ``base``: the pipeline without any."""
    systems = {BASE: base, **pieces}
    task = progress.add_task("breakdown", total=len(systems) + rounds * len(workload.batches))

    def advance() -> None:
        progress.advance(task)

    async with started(systems, workload.of(0, workload.batches[-1]), advance):
        comparison = await compare(systems, workload, rounds, advance)
    for name in pieces:
        for batch in workload.batches:
            findings.add(f"breakdown_{name}_vs_{BASE}_b{batch}", comparison.ratio(name, BASE, batch))
            findings.add(f"breakdown_{name}_acceptance_b{batch}", comparison.acceptance(name, batch))
