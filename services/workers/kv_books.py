"""Books of what a KV cache would hold: block tables, and which token was written into each slot.

A device that computes nothing still answers by them, so a wrong input, a block used twice, a slot that a rolled-back
draft left behind, or an unverified token in the prefix cache changes the text.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from vllm.v1.core.sched.output import SchedulerOutput

_NEVER_WRITTEN = -1


@dataclass(frozen=True, slots=True)
class Row:
    """A request's part of a step."""

    request_id: str
    start: int
    """Position of its first token."""
    count: int
    tokens: list[int]
    """Empty where the plan does not know them: the stage before, or the first stage's draft, does."""

    @property
    def end(self) -> int:
        """Tokens of the text after the step."""
        return self.start + self.count


def planned_rows(plan: SchedulerOutput) -> list[Row]:
    """What a step runs, in the plan's order; requests that were taken out of ``num_scheduled_tokens`` do not."""
    counts = plan.num_scheduled_tokens
    rows = []
    for new in plan.scheduled_new_reqs:
        start, count = new.num_computed_tokens, counts[new.req_id]
        rows.append(Row(new.req_id, start, count, list(new.prompt_token_ids or ())[start : start + count]))
    cached = plan.scheduled_cached_reqs
    for id_, start, tokens in zip(cached.req_ids, cached.num_computed_tokens, cached.new_token_ids, strict=True):
        if id_ in counts:
            rows.append(Row(id_, start, counts[id_], list(tokens)))
    return rows


class KvBooks:
    """One stage's block tables and slots."""

    def __init__(self, blocks: int, block_size: int) -> None:
        """``blocks`` of ``block_size`` tokens, as vLLM's pool has them."""
        self._slots = np.full(blocks * block_size, _NEVER_WRITTEN, np.int32)
        self._block = np.arange(block_size)
        self._places: dict[str, NDArray[np.int64]] = {}
        self._given: dict[str, int] = {}

    def take(self, plan: SchedulerOutput) -> None:
        """Enters the plan's blocks, for requests that were taken out of the step too."""
        for request_id in plan.finished_req_ids:
            self._places.pop(request_id, None)
            self._given.pop(request_id, None)
        for new in plan.scheduled_new_reqs:
            self._places[new.req_id] = self._slots_of(new.block_ids[0])
            self._given[new.req_id] = len(new.prompt_token_ids or ())
        cached = plan.scheduled_cached_reqs
        for request_id, blocks in zip(cached.req_ids, cached.new_block_ids, strict=True):
            if request_id in cached.resumed_req_ids:
                self._places[request_id] = self._slots_of(())
                self._given[request_id] = len(cached.all_token_ids[request_id])
            if blocks is not None:
                self._places[request_id] = np.concatenate((self._places[request_id], self._slots_of(blocks[0])))

    def run(self, rows: Sequence[Row], tokens: Sequence[int]) -> list[NDArray[np.int32]]:
        """Writes all rows' tokens, as a layer does before it attends.

        Args:
            rows: the step.
            tokens: theirs, one row after another.

        Returns:
            Each row's whole text as the slots have it, int32 [tokens].
        """
        begin = 0
        for row in rows:
            places = self._places[row.request_id][row.start : row.end]
            self._slots[places] = tokens[begin : begin + row.count]
            begin += row.count
        return [self._slots[self._places[row.request_id][: row.end]] for row in rows]

    def is_sampled(self, row: Row) -> bool:
        """False while a prompt, or the text of a request that was preempted, is not in whole."""
        return row.end >= self._given[row.request_id]

    def _slots_of(self, blocks: Sequence[int]) -> NDArray[np.int64]:
        return (np.asarray(blocks, np.int64)[:, None] * len(self._block) + self._block).reshape(-1)
