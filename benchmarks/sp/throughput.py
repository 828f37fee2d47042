"""Decode throughput of every system at every batch, and what speculation gains over the others."""

from collections.abc import Mapping, Sequence
from statistics import mean

from rich.progress import Progress

from benchmarks.sp.comparison import Comparison, Workload, compare, started
from benchmarks.sp.findings import Findings
from benchmarks.sp.systems import System

SPECULATION, MICRO, WHOLE, STOCK, ONE_PROCESS = "sp", "micro", "whole", "stock", "one_process"
PIPELINES = (MICRO, WHOLE, STOCK)
"""What speculation has to beat: all that uses the same two stages without it."""
SMALL_BATCHES = (2, 4, 8)
"""Where these cores are bound by memory, as devices are that serve large models."""


async def measure_throughput(
    systems: Mapping[str, System], workload: Workload, rounds: int, progress: Progress
) -> Comparison:
    """Interleaved rounds of all ``systems``, which are named as above."""
    task = progress.add_task("throughput", total=len(systems) + rounds * len(workload.batches))

    def advance() -> None:
        progress.advance(task)

    async with started(systems, workload.of(0, workload.batches[-1]), advance):
        return await compare(systems, workload, rounds, advance)


def report_throughput(comparison: Comparison, batches: Sequence[int], end_token: int, findings: Findings) -> None:
    """Gains first, then what they are made of. ``end_token`` ends an answer unless it is told to go on."""
    systems = list(dict.fromkeys(name for name, _ in comparison.runs))
    if SPECULATION in systems:
        _gains(comparison, [name for name in PIPELINES if name in systems], batches, findings)
        for batch in batches:
            if ONE_PROCESS in systems:
                findings.add(f"sp_vs_one_process_b{batch}", comparison.ratio(SPECULATION, ONE_PROCESS, batch))
            if MICRO in systems:
                findings.add(f"sp_same_text_as_micro_b{batch}", comparison.same_text(SPECULATION, MICRO, batch))
            findings.add(f"sp_acceptance_b{batch}", comparison.acceptance(SPECULATION, batch))
    for name in systems:
        for batch in batches:
            findings.add(f"{name}_tokens_per_s_b{batch}", comparison.throughput(name, batch))
    findings.add("tokens_after_end_of_answer", _after_end(comparison, end_token))


def _gains(comparison: Comparison, pipelines: Sequence[str], batches: Sequence[int], findings: Findings) -> None:
    """Over the pipeline with the highest median, batch by batch, and on the mean of the small ones."""
    if not pipelines:
        return
    best = {batch: comparison.best(pipelines, batch) for batch in batches}
    findings.details["best_pp"] = {f"b{batch}": name for batch, name in best.items()}
    gains = {batch: comparison.ratio(SPECULATION, best[batch], batch) for batch in batches}
    for batch, values in gains.items():
        findings.add(f"sp_vs_best_pp_b{batch}", values)
    if set(SMALL_BATCHES) <= gains.keys():
        by_round = zip(*(gains[batch] for batch in SMALL_BATCHES), strict=True)
        findings.add("sp_vs_best_pp_mean_of_b2_b4_b8", [mean(each) for each in by_round])


def _after_end(comparison: Comparison, end_token: int) -> list[float]:
    """Share of tokens behind the one with which the model would have ended its answer, round by round."""
    shares = []
    for runs in zip(*comparison.runs.values(), strict=True):
        answers = [answer.tokens for run in runs for answer in run.answers]
        behind = sum(len(tokens) - tokens.index(end_token) - 1 for tokens in answers if end_token in tokens)
        shares.append(behind / sum(map(len, answers)))
    return shares
