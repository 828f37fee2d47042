"""Block records as tensors, in groups of candidates that are ranked against one another."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from torch import Tensor

from services.common.errors import ConfigError
from services.common.expert import DEPTHS, Expert
from services.common.expert_profiles import Profile
from services.common.training.prompt import stable_hash
from services.scheduler.apex.arms import POSITIONS
from services.scheduler.apex.block_table import BlockTable
from services.scheduler.apex.history import ROW_OF
from services.scheduler.apex.training.labels import labels_of

VALIDATION_PERCENT: Final = 15
"""Of the prompts that are not held out."""


@dataclass(frozen=True, slots=True, eq=False)
class Examples:
    """Of some blocks, the groups one behind the other.

    Attributes:
        features: [blocks, features].
        experts: rows of ``EXPERT_ROWS``, [blocks].
        depths: rows of ``DEPTHS``, the nearest that is no shallower than what was drafted, [blocks].
        accepted: [blocks].
        drafted: [blocks].
        outcomes: log cost, log throughput and utility, [blocks, 3].
        group: same prompt, expert and block index, from 0 and rising, [blocks].
    """

    features: Tensor
    experts: Tensor
    depths: Tensor
    accepted: Tensor
    drafted: Tensor
    outcomes: Tensor
    group: Tensor

    def __len__(self) -> int:
        return len(self.group)

    @classmethod
    def of(cls, blocks: BlockTable, profile: Profile) -> "Examples":
        """Sorted by group."""
        keys = list(zip(blocks.prompt_id, blocks.expert, blocks.index.tolist(), strict=True))
        numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
        group = np.array([numbers[key] for key in keys], np.int64)
        order = np.argsort(group, kind="stable")
        outcomes = labels_of(blocks, profile).as_array()[order].astype(np.float32)
        blocks = blocks.of_rows(order)
        return cls(
            torch.from_numpy(blocks.features),
            torch.tensor([ROW_OF[Expert(each)] for each in blocks.expert]),
            torch.from_numpy(np.searchsorted(np.array(DEPTHS), blocks.drafted)),
            torch.from_numpy(blocks.accepted),
            torch.from_numpy(blocks.drafted),
            torch.from_numpy(outcomes),
            torch.from_numpy(group[order]),
        )

    def of_rows(self, rows: Tensor) -> "Examples":
        """Some of them; whole groups, in order."""
        return Examples(
            self.features[rows],
            self.experts[rows],
            self.depths[rows],
            self.accepted[rows],
            self.drafted[rows],
            self.outcomes[rows],
            torch.unique_consecutive(self.group[rows], return_inverse=True)[1],
        )

    def batches(self, size: int, rng: np.random.Generator) -> Iterator["Examples"]:
        """All of them in a new order, in batches of at least ``size`` blocks but for the last; groups stay whole."""
        _, lengths = torch.unique_consecutive(self.group, return_counts=True)
        starts = (lengths.cumsum(0) - lengths).tolist()
        rows: list[int] = []
        for each in rng.permutation(len(lengths)).tolist():
            rows.extend(range(starts[each], starts[each] + int(lengths[each])))
            if len(rows) >= size:
                yield self.of_rows(torch.tensor(rows))
                rows = []
        if rows:
            yield self.of_rows(torch.tensor(rows))


def usable(blocks: BlockTable) -> BlockTable:
    """Those that can be learnt from.

    Raises:
        ConfigError: there are none, or some are impossible.
    """
    took_time = (blocks.draft_s + blocks.verify_s > 0) & (blocks.emitted > 0)
    blocks = blocks.of_rows(took_time)
    if not len(blocks):
        raise ConfigError("the traces hold no block that took time and emitted tokens; record some first")
    if (blocks.accepted > blocks.drafted).any() or (blocks.drafted > POSITIONS).any() or (blocks.accepted < 0).any():
        raise ConfigError(f"the traces hold blocks without 0 <= accepted <= drafted <= {POSITIONS}; record them again")
    if not np.isfinite(blocks.features).all():
        raise ConfigError("the traces hold features that are not finite; record them again")
    return blocks


def split(blocks: BlockTable) -> tuple[BlockTable, BlockTable, BlockTable]:
    """To learn from, to validate on, to report on; by prompt. Without held-out prompts the report is on validation.

    Raises:
        ConfigError: too few prompts for both of the first two.
    """
    held_out = blocks.split == "held_out"
    validates = np.array([stable_hash(f"validation {each}") % 100 < VALIDATION_PERCENT for each in blocks.prompt_id])
    train, validation = blocks.of_rows(~held_out & ~validates), blocks.of_rows(~held_out & validates)
    if not len(train) or not len(validation):
        raise ConfigError("the traces hold too few prompts to learn from and to validate on; record more")
    return train, validation, blocks.of_rows(held_out) if held_out.any() else validation
