"""One pipeline with speculation against the same one without: what differs, and where."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from transformers import AutoTokenizer

from benchmarks.equality.parts import Part
from benchmarks.equality.work import Work
from benchmarks.report import Figure


@dataclass
class Pair:
    """The parts of both sides by batch; ``plain`` is complete before ``speculating`` begins."""

    dtype: str
    stages: int
    work: Sequence[Work]
    plain: dict[int, Part] = field(default_factory=dict)
    speculating: dict[int, Part] = field(default_factory=dict)

    @property
    def differing(self) -> int:
        """Answers that speculation has changed, over all batches."""
        return sum(len(_differing(part, self.plain[batch])) for batch, part in self.speculating.items())

    def figures(self) -> dict[str, Figure]:
        """Counts of answers, named by precision, stages and batches."""
        name = f"{self.dtype}_{{}}_p{self.stages}".format
        figures = {}
        for batch, part in self.speculating.items():
            changed = len(_differing(part, self.plain[batch]))
            figures[f"{name('sp_differing')}_b{batch}"] = _count(changed, f"of {len(part.answers)} answers")
        for one, other in combinations(sorted(self.plain), 2):
            # Batches may have answers of different lengths: as far as both go.
            tokens = min(_longest(self.plain[one]), _longest(self.plain[other]))
            changed = len(_differing(self.plain[one], self.plain[other], tokens))
            figures[f"{name('plain_differing')}_b{one}_b{other}"] = _count(changed, f"of {len(self.work)} answers")
        for what in ("drafted", "accepted", "dropped"):
            total = sum(getattr(part, what) for part in self.speculating.values())
            figures[name(what)] = _count(total, "drafts")
        return figures

    def divergences(self, tokenizer: AutoTokenizer) -> list[dict[str, Any]]:
        """Every answer that speculation has changed: where it first differs, and both texts."""
        return [
            {
                "dtype": self.dtype,
                "stages": self.stages,
                "batch": batch,
                "request": index,
                "kind": self.work[index].kind,
                "position": _first_difference(self.plain[batch].answers[index], part.answers[index]),
                "plain": tokenizer.decode(self.plain[batch].answers[index]),
                "speculating": tokenizer.decode(part.answers[index]),
            }
            for batch, part in self.speculating.items()
            for index in _differing(part, self.plain[batch])
        ]


def _differing(one: Part, other: Part, tokens: int | None = None) -> list[int]:
    """Requests whose answers differ, within the first ``tokens`` if given."""
    pairs = zip(one.answers, other.answers, strict=True)
    return [index for index, (mine, theirs) in enumerate(pairs) if mine[:tokens] != theirs[:tokens]]


def _longest(part: Part) -> int:
    return max(map(len, part.answers))


def _first_difference(one: list[int], other: list[int]) -> int:
    shorter = min(len(one), len(other))
    return next((index for index in range(shorter) if one[index] != other[index]), shorter)


def _count(value: int, unit: str) -> Figure:
    return Figure(value, value, value, unit, 1)
