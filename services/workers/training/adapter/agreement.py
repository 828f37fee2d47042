"""The report's figures: how often the draft is the target's own next token, overall and by what it depends on."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.workers.training.adapter.evaluation import Drafts

CONFIDENT_SHARE = 0.8
POSITION_BOUNDS = (0, 1, 4, 16, 64, 128, 256)
CONFIDENCE_PARTS = 10


@dataclass(frozen=True, slots=True)
class Agreement:
    """Over some positions; ``share`` of them agree. Tokens outside the draft vocabulary count as misses."""

    positions: int
    share: float

    @classmethod
    def of(cls, agrees: NDArray[np.bool_]) -> "Agreement":
        """Over these positions, of which there must be some."""
        return cls(len(agrees), float(agrees.mean()))


@dataclass(frozen=True, slots=True)
class AgreementReport:
    """All figures are of greedy answers, except ``sampled``: of answers that the target sampled at temperature 1."""

    overall: Agreement
    confident: Agreement
    """Of the most confident ``CONFIDENT_SHARE`` of the drafts: what is left when the others are dropped."""
    coverage: float
    """Positions whose token is in the draft vocabulary."""
    by_workload: Mapping[str, Agreement]
    by_position: Mapping[str, Agreement]
    """Keyed ``first-last`` position in the answer, from 0."""
    by_confidence: tuple[tuple[float, Agreement], ...]
    """In equal parts of the positions, most confident first, with the lowest confidence of each part."""
    sampled: Agreement | None

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def measure_agreement(drafts: Drafts) -> AgreementReport:
    """The figures of held-out drafts.

    Raises:
        ValueError: none of the answers is greedy.
    """
    greedy, sampled = drafts.where(drafts.greedy), drafts.where(~drafts.greedy)
    if not len(greedy.agrees):
        raise ValueError("no held-out answer was greedy; generate more answers first")
    order = np.argsort(-greedy.confidence, kind="stable")
    confident = order[: max(1, round(CONFIDENT_SHARE * len(order)))]
    return AgreementReport(
        overall=Agreement.of(greedy.agrees),
        confident=Agreement.of(greedy.agrees[confident]),
        coverage=float(greedy.draftable.mean()),
        by_workload={
            str(name): Agreement.of(greedy.agrees[greedy.workload == name]) for name in np.unique(greedy.workload)
        },
        by_position=_by_position(greedy),
        by_confidence=tuple(
            (float(greedy.confidence[part].min()), Agreement.of(greedy.agrees[part]))
            for part in np.array_split(order, CONFIDENCE_PARTS)
            if len(part)
        ),
        sampled=Agreement.of(sampled.agrees) if len(sampled.agrees) else None,
    )


def _by_position(drafts: Drafts) -> dict[str, Agreement]:
    bounds = [*POSITION_BOUNDS, max(POSITION_BOUNDS[-1], int(drafts.position.max())) + 1]
    found = {}
    for first, end in pairwise(bounds):
        inside = (drafts.position >= first) & (drafts.position < end)
        if inside.any():
            found[f"{first}-{end - 1}"] = Agreement.of(drafts.agrees[inside])
    return found
