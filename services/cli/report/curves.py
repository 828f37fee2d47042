"""What block records say of each expert: how drafts survive by position, and how blocks change over a request. Pure."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.common.expert import Expert
from services.scheduler.apex.arms import POSITIONS
from services.scheduler.apex.block_table import BlockTable
from services.scheduler.apex.depth_net import DepthNet
from services.scheduler.apex.history import ROW_OF
from services.scheduler.apex.survival import hazards_of, outcomes, survival

Floats = NDArray[np.floating[Any]]


@dataclass(frozen=True, slots=True, eq=False)
class Survival:
    """Of one expert's drafts, by position from 1, [positions] each.

    Attributes:
        expert: who drafted.
        reached: blocks whose draft at the position was judged.
        observed: share of blocks that accept the drafts up to it (Kaplan and Meier's estimate, 1958).
        expected: the same by a depth model, in the mean over the blocks; None without one, or where it knows nothing
            of the expert.
    """

    expert: str
    reached: NDArray[np.int64]
    observed: Floats
    expected: Floats | None


@dataclass(frozen=True, slots=True, eq=False)
class Course:
    """Of one expert's blocks, by their number within the request from 0, [blocks] each; means over requests."""

    expert: str
    requests: NDArray[np.int64]
    drafted: Floats
    accepted: Floats


def survivals(blocks: BlockTable, net: DepthNet | None) -> list[Survival]:
    """Of every expert that drafted; ``net``: to compare with."""
    found = []
    for expert in _drafting(blocks):
        mine = blocks.of_rows((blocks.expert == expert) & (blocks.drafted > 0))
        survived, rejected = outcomes(mine.accepted, mine.drafted, POSITIONS)
        reached = survived.sum(0) + rejected.sum(0)
        deepest = int(np.flatnonzero(reached)[-1]) + 1
        hazards = rejected.sum(0)[:deepest] / reached[:deepest]
        expected = None
        if net is not None and expert in net.config.trained_on:
            encoded = net.encode(mine.features[:, None], np.array([ROW_OF[Expert(expert)]]))
            expected = survival(hazards_of(net.hazard_logits(encoded)[:, 0])).mean(0)[:deepest]
        found.append(Survival(expert, reached[:deepest], survival(hazards), expected))
    return found


def courses(blocks: BlockTable, longest: int = 200) -> list[Course]:
    """Of every expert that drafted, over the first ``longest`` blocks of requests."""
    found = []
    for expert in _drafting(blocks):
        mine = blocks.of_rows((blocks.expert == expert) & (blocks.drafted > 0) & (blocks.index < longest))
        if not len(mine):
            continue
        counts = np.bincount(mine.index)
        drafted, accepted = (np.bincount(mine.index, each) for each in (mine.drafted, mine.accepted))
        found.append(Course(expert, counts, drafted / np.maximum(counts, 1), accepted / np.maximum(counts, 1)))
    return found


def _drafting(blocks: BlockTable) -> list[str]:
    return [each.value for each in Expert if ((blocks.expert == each.value) & (blocks.drafted > 0)).any()]
