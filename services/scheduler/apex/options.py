"""What each request of a step may do next, as arrays: one column for a plain block, one per expert and depth."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

import numpy as np
from numpy.typing import NDArray

from services.common.expert import DEPTHS, Expert
from services.scheduler.apex.arms import arm_of, ngram_arms
from services.scheduler.apex.policy import Candidate

DRAFT_DEPTHS: Final = np.array(DEPTHS[1:])
_SHALLOWER: Final = np.array(DEPTHS[:-1])

PLAIN_COLUMN: Final = 0
NGRAM_COLUMNS: Final = slice(1, 1 + len(DRAFT_DEPTHS))
NEURAL_COLUMNS: Final = slice(1 + len(DRAFT_DEPTHS), 1 + 2 * len(DRAFT_DEPTHS))
COLUMNS: Final = NEURAL_COLUMNS.stop
DEPTH_OF_COLUMN: Final = np.array((0, *DRAFT_DEPTHS, *DRAFT_DEPTHS))
"""Before it is cut to what a request can take."""

NGRAM_SIDE, NEURAL_SIDE = 0, 1
"""Index of an expert where only those that draft are listed."""
_FIELDS: Final = attrgetter("experts", "deepest", "ngram_match", "ngram_found", "expert", "depth")
_SIDE_OF_COLUMN: Final = (np.arange(COLUMNS) >= NEURAL_COLUMNS.start).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Pins:
    """What the replica's configuration asks for, of requests that do not ask themselves; None: free."""

    expert: Expert | None = None
    depth: int | None = None
    depths: Collection[int] = DEPTHS
    """Among which a free one is chosen; 0 always is."""

    @property
    def any(self) -> bool:
        """Something is asked for."""
        return self.expert is not None or self.depth is not None


@dataclass(frozen=True, slots=True, eq=False)
class Options:
    """Of one step's candidates.

    Attributes:
        candidates: in order.
        experts: by column side: the n-gram expert and the neural one; the latter None where the replica has none.
        found: tokens of the n-gram expert's match and of what it found behind it, [requests, 2].
        drafted: draft tokens by column, cut to what fits and to what the n-gram expert found, [requests, columns].
        allowed: columns that a request may take, never none, [requests, columns].
        is_pinned: nothing is left to choose, since both expert and depth are pinned, [requests].
        wants_plain: a plain block is what is pinned, [requests].
    """

    candidates: Sequence[Candidate]
    experts: tuple[Expert, Expert | None]
    found: NDArray[np.int64]
    drafted: NDArray[np.int64]
    allowed: NDArray[np.bool_]
    is_pinned: NDArray[np.bool_]
    wants_plain: NDArray[np.bool_]

    @classmethod
    def of(cls, candidates: Sequence[Candidate], neural: Expert | None, pins: Pins) -> "Options":
        """Of at least one candidate. ``neural``: the replica's drafter; None: it has none. ``pins``: the replica's."""
        # By column, since NumPy takes three times as long for rows.
        experts, deepest, match, found_tokens, asked, depths = zip(*map(_FIELDS, candidates), strict=True)
        found = np.array([match, found_tokens]).T
        limits = np.empty_like(found)
        for side, expert in enumerate((Expert.NGRAM, neural)):
            limits[:, side] = [expert in some for some in experts]
        limits *= np.array(deepest)[:, None]
        np.minimum(limits[:, NGRAM_SIDE], found[:, 1], out=limits[:, NGRAM_SIDE])
        drafted = np.zeros((len(candidates), COLUMNS), np.int64)
        allowed = np.zeros((len(candidates), COLUMNS), bool)
        allowed[:, PLAIN_COLUMN] = True
        for side, columns in enumerate((NGRAM_COLUMNS, NEURAL_COLUMNS)):
            drafted[:, columns] = np.minimum(DRAFT_DEPTHS, limits[:, side, None])
            # The first depth beyond the limit stands for the limit itself; those behind it would repeat it.
            allowed[:, columns] = limits[:, side, None] > _SHALLOWER
            if pins.depths != DEPTHS:
                allowed[:, columns] &= np.isin(DRAFT_DEPTHS, list(pins.depths))
        is_pinned, wants_plain = np.zeros((2, len(candidates)), bool)
        options = cls(candidates, (Expert.NGRAM, neural), found, drafted, allowed, is_pinned, wants_plain)
        if pins.any or asked.count(None) + depths.count(None) < 2 * len(candidates):
            for row, each in enumerate(candidates):
                options._pin(row, each.expert or pins.expert, pins.depth if each.depth is None else each.depth)
        return options

    def arms(self) -> NDArray[np.int64]:
        """Which counts speak for the two experts of each request (``arms.ARMS``); [requests, 2]."""
        arms = np.empty((len(self.candidates), 2), np.int64)
        arms[:, NGRAM_SIDE] = ngram_arms(self.found[:, 0])
        arms[:, NEURAL_SIDE] = arm_of(self.experts[NEURAL_SIDE] or Expert.EAGLE3, 0)
        return arms

    def by_column(self, by_depth: NDArray[np.float32]) -> NDArray[np.float32]:
        """Something known for both experts and every depth from 0 on, [requests, 2, depths]; [requests, columns]."""
        requests, sides, depths = by_depth.shape
        first = np.arange(0, requests * sides * depths, sides * depths)[:, None]
        values: NDArray[np.float32] = by_depth.take(first + _SIDE_OF_COLUMN * depths + self.drafted)
        return values

    def expert_of(self, column: int) -> Expert:
        """Who drafts."""
        if column == PLAIN_COLUMN:
            return Expert.PLAIN
        expert = self.experts[NGRAM_SIDE if column < NEURAL_COLUMNS.start else NEURAL_SIDE]
        return expert or Expert.PLAIN

    def can_draft(self) -> NDArray[np.bool_]:
        """Something else than a plain block is possible; [requests]."""
        return np.asarray(self.allowed[:, PLAIN_COLUMN + 1 :].any(axis=1))

    def _pin(self, row: int, expert: Expert | None, depth: int | None) -> None:
        """Leaves what is asked for; a pinned expert may still draft nothing, unless a depth is pinned as well."""
        allowed, drafted = self.allowed[row], self.drafted[row]
        if expert is None and depth is None:
            return
        self.wants_plain[row] = wants_plain = expert is Expert.PLAIN or depth == 0
        self.is_pinned[row] = wants_plain or (expert is not None and depth is not None)
        if wants_plain:
            allowed[PLAIN_COLUMN + 1 :] = False
            return
        for side, columns in enumerate((NGRAM_COLUMNS, NEURAL_COLUMNS)):
            limit = drafted[columns].max()
            if expert not in (None, self.experts[side]):
                allowed[columns] = False
            elif depth is not None and limit:
                allowed[columns] = False
                at = columns.start + int(np.searchsorted(DRAFT_DEPTHS, min(depth, limit)))
                allowed[at], drafted[at] = True, min(depth, limit)
        if depth is not None and allowed[PLAIN_COLUMN + 1 :].any():
            allowed[PLAIN_COLUMN] = False
