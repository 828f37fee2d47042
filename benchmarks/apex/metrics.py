"""Speedup, waste and what they are compared with, from what was measured. Pure.

    speedup of a setting in a workload = (its answers' tokens / seconds) / (the same of plain decoding)
    waste                              = (drafted - accepted) / drafted
    WAS                                = speedup / waste

papers/apex does not print the formula of its waste-adjusted speedup; speedup over the share that is wasted gives every
value that it reports. In aggregate, speedup and waste are means over the workloads, each counting the same.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median

from benchmarks.apex.settings import FIXED, PLAIN_NAME, Setting


@dataclass(frozen=True, slots=True)
class Run:
    """Requests of one workload that were asked at once, with one setting."""

    setting: str
    workload: str
    batch: int
    round: int
    group: str
    """Names the prompts: the same in every round and with every setting."""
    tokens: int
    seconds: float
    """From sending the requests to the last token of all."""
    drafted: int = 0
    accepted: int = 0
    blocks: int = 0
    """Verifying steps with drafts."""


@dataclass(frozen=True, slots=True)
class Point:
    """One setting, in one workload or in aggregate."""

    speedup: float
    waste: float
    """0 where nothing was drafted."""

    @property
    def was(self) -> float | None:
        """Waste-adjusted speedup; None where nothing was wasted."""
        return self.speedup / self.waste if self.waste else None


Points = Mapping[str, Mapping[str, Point]]
"""By setting and workload."""


def points(runs: Iterable[Run]) -> Points:
    """Of runs of one batch that include plain ones of every workload."""
    sums: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0] * 4)
    for run in runs:
        for at, value in enumerate((run.tokens, run.seconds, run.drafted, run.accepted)):
            sums[run.setting, run.workload][at] += value
    found: dict[str, dict[str, Point]] = defaultdict(dict)
    for (setting, workload), (tokens, seconds, drafted, accepted) in sums.items():
        plain_tokens, plain_seconds, *_ = sums[PLAIN_NAME, workload]
        waste = (drafted - accepted) / drafted if drafted else 0.0
        found[setting][workload] = Point(tokens / seconds * plain_seconds / plain_tokens, waste)
    return found


def aggregate(of_setting: Mapping[str, Point]) -> Point:
    """The means over the workloads."""
    each = list(of_setting.values())
    return Point(mean(point.speedup for point in each), mean(point.waste for point in each))


def best_fixed(found: Points, settings: Sequence[Setting]) -> str:
    """Name of the fixed setting with the highest aggregate speedup; plain decoding is one of them."""
    names = [each.name for each in settings if each.system == FIXED and each.name in found]
    return max(names, key=lambda name: aggregate(found[name]).speedup)


def worst_workload_ratio(found: Points, setting: str, settings: Sequence[Setting]) -> float:
    """Speedup over that of the fixed setting that is the fastest in the same workload, where this is least."""
    fixed = [each.name for each in settings if each.system == FIXED and each.name in found]
    return min(
        point.speedup / max(found[name][workload].speedup for name in fixed if workload in found[name])
        for workload, point in found[setting].items()
    )


def oracle_speedup(runs: Sequence[Run], settings: Sequence[Setting]) -> float:
    """Aggregate speedup if every request had its own best fixed setting, known beforehand; runs of batch 1.

    A request's seconds a token are the median of its rounds, so that luck does not choose.
    """
    fixed = {each.name for each in settings if each.system == FIXED}
    paces: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    tokens: dict[tuple[str, str], int] = {}
    for run in runs:
        if run.setting in fixed:
            paces[run.workload, run.group][run.setting].append(run.seconds / run.tokens)
            tokens[run.workload, run.group] = run.tokens
    spent: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for request, by_setting in paces.items():
        medians = {name: median(values) for name, values in by_setting.items()}
        spent[request[0]][0] += tokens[request] * medians[PLAIN_NAME]
        spent[request[0]][1] += tokens[request] * min(medians.values())
    return mean(plain / best for plain, best in spent.values())


def accepted_per_block(runs: Iterable[Run], setting: str) -> float | None:
    """Accepted drafts a verifying step with drafts, over all workloads; None where there was none."""
    mine = [run for run in runs if run.setting == setting]
    blocks = sum(run.blocks for run in mine)
    return sum(run.accepted for run in mine) / blocks if blocks else None
