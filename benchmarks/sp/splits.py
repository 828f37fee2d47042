"""The best layer split of each pipeline: a few candidates in turn, since the last stage also carries the LM head."""

from collections.abc import Callable, Mapping, Sequence
from statistics import median

from rich.progress import Progress

from benchmarks.sp.comparison import Workload, compare, started
from benchmarks.sp.findings import Findings
from benchmarks.sp.systems import ForerunSystem

BATCH = 8
ROUNDS = 2

Layers = list[int]


async def best_splits(
    make: Mapping[str, Callable[[Layers], ForerunSystem]],
    prompts: Sequence[Sequence[int]],
    candidates: Sequence[Layers],
    findings: Findings,
    progress: Progress,
) -> dict[str, Layers]:
    """By system, the layers of both stages with which it decodes fastest at ``BATCH``."""
    task = progress.add_task("layer splits", total=len(make) * (len(candidates) + ROUNDS))
    workload = Workload(prompts, [BATCH], tokens=48)
    return {
        name: await _best(name, each, candidates, workload, findings, lambda: progress.advance(task))
        for name, each in make.items()
    }


async def _best(
    name: str,
    make: Callable[[Layers], ForerunSystem],
    candidates: Sequence[Layers],
    workload: Workload,
    findings: Findings,
    advance: Callable[[], None],
) -> Layers:
    by_label = {f"split_{name}_{layers[0]}_{layers[1]}": layers for layers in candidates}
    systems = {label: make(layers) for label, layers in by_label.items()}
    async with started(systems, workload.of(0, BATCH), advance):
        comparison = await compare(systems, workload, ROUNDS, advance)
    throughput = {label: comparison.throughput(label, BATCH) for label in systems}
    for label, values in throughput.items():
        findings.add(f"{label}_tokens_per_s", values)
    best = by_label[max(throughput, key=lambda label: median(throughput[label]))]
    findings.details[f"layers_{name}"] = best
    return best
