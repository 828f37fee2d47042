"""Systems taking turns: the same prompts for each, batch by batch, round by round."""

from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from statistics import mean, median

import psutil

from benchmarks.sp.systems import Run, System

GIB_OF_A_SYSTEM = 4.1
"""What the processes of one Forerun with two stages of SmolLM2-135M in float32 take, shared pages divided."""
WARM_UP_TOKENS = 8
LONG_ANSWERS_UP_TO = 8
"""Beyond this batch answers are half as long: more requests average out sooner, and take longer."""


@dataclass(frozen=True)
class Workload:
    """Prompts, taken in order and from the start again, so that each round and each batch has other ones."""

    prompts: Sequence[Sequence[int]]
    batches: Sequence[int]
    tokens: int

    def of(self, number: int, batch: int) -> list[Sequence[int]]:
        """The prompts of ``batch`` in round ``number``."""
        before = number * sum(self.batches) + sum(self.batches[: self.batches.index(batch)])
        return [self.prompts[(before + index) % len(self.prompts)] for index in range(batch)]

    def max_tokens(self, batch: int) -> int:
        """Tokens of each answer."""
        return self.tokens if batch <= LONG_ANSWERS_UP_TO else self.tokens // 2


@dataclass
class Comparison:
    """Every run by system and batch, in the order of the rounds."""

    runs: dict[tuple[str, int], list[Run]] = field(default_factory=lambda: defaultdict(list))

    def throughput(self, system: str, batch: int) -> list[float]:
        """Tokens per second, round by round."""
        return [run.tokens_per_s for run in self.runs[system, batch]]

    def ratio(self, system: str, other: str, batch: int) -> list[float]:
        """``system`` over ``other``, round by round."""
        pairs = zip(self.throughput(system, batch), self.throughput(other, batch), strict=True)
        return [mine / theirs for mine, theirs in pairs]

    def same_text(self, system: str, other: str, batch: int) -> list[float]:
        """Share of answers that are equal token for token, round by round."""
        pairs = zip(self.runs[system, batch], self.runs[other, batch], strict=True)
        return [
            mean(one.tokens == two.tokens for one, two in zip(mine.answers, theirs.answers, strict=True))
            for mine, theirs in pairs
        ]

    def acceptance(self, system: str, batch: int) -> list[float]:
        """Share of judged drafts that were right, of the rounds in which there were any."""
        return [run.accepted / run.drafted for run in self.runs[system, batch] if run.drafted]

    def best(self, systems: Sequence[str], batch: int) -> str:
        """The one with the highest median."""
        return max(systems, key=lambda name: median(self.throughput(name, batch)))


@asynccontextmanager
async def started(
    systems: Mapping[str, System], warm_up: Sequence[Sequence[int]], advance: Callable[[], None]
) -> AsyncIterator[None]:
    """All systems, started one after the other and warmed up; calls ``advance`` after each.

    Raises ``MemoryError`` before anything is started when they would not fit.
    """
    _check_memory(len(systems))
    async with AsyncExitStack() as stack:
        for system in systems.values():
            await stack.enter_async_context(system)
            await system.run(warm_up, WARM_UP_TOKENS)
            advance()
        yield


def _check_memory(systems: int) -> None:
    needed, free = systems * GIB_OF_A_SYSTEM, psutil.virtual_memory().available / 2**30
    if free < needed:
        raise MemoryError(
            f"{systems} systems at once take about {needed:.0f} GiB, {free:.0f} are free; end other programs, or name "
            "fewer with --systems and --splits"
        )


async def compare(
    systems: Mapping[str, System], workload: Workload, rounds: int, advance: Callable[[], None]
) -> Comparison:
    """``rounds`` rounds over all batches; calls ``advance`` after each batch of each round."""
    comparison = Comparison()
    for number in range(rounds):
        # Every other round the other way round, so that a machine that slows down steadily favours nobody.
        names = list(systems) if number % 2 == 0 else list(reversed(systems))
        for batch in workload.batches:
            prompts = workload.of(number, batch)
            for name in names:
                run = await systems[name].run(prompts, workload.max_tokens(batch))
                comparison.runs[name, batch].append(run)
            advance()
    return comparison
