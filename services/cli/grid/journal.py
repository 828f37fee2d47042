"""What a grid has recorded, so that it goes on where it was interrupted.

``requests.parquet`` is what counts: it is written after the blocks of its requests, and block files whose requests it
does not know are left over from an interruption and removed.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from services.router.apex.training.request_table import Key, RequestRow, read_requests, write_requests
from services.scheduler.apex.block_table import BlockTable, read_file, write_table

BLOCKS, REQUESTS = "blocks", "requests.parquet"


class Journal:
    """One per output folder."""

    def __init__(self, folder: Path) -> None:
        """Makes the folder, or reads what is in it. Raises ``ConfigError`` for files of other versions."""
        self.blocks = folder / BLOCKS
        self._requests = folder / REQUESTS
        self.blocks.mkdir(parents=True, exist_ok=True)
        self.rows = read_requests(self._requests)
        known = {row.request_id for row in self.rows}
        last = -1
        for path in sorted(self.blocks.glob("*.parquet")):
            if known.isdisjoint(read_file(path).request_id):
                path.unlink()
            else:
                last = int(path.stem.rpartition("-")[2])
        self._next = last + 1

    @property
    def done(self) -> set[Key]:
        """What need not be asked again."""
        return {row.key for row in self.rows}

    def commit(self, rows: Sequence[RequestRow], blocks: BlockTable) -> None:
        """Requests with all of their blocks, as the replica recorded them."""
        if not rows:
            return
        write_table(self.blocks / f"blocks-{self._next:06d}.parquet", labelled(blocks, rows))
        self._next += 1
        self.rows += rows
        write_requests(self._requests, self.rows)


def labelled(blocks: BlockTable, rows: Sequence[RequestRow]) -> BlockTable:
    """With what the replica did not know: the prompt, its workload and part, and the depth that was asked for.

    The replica says how deep a block could be at most; at an answer's end that is less than the request asked for.
    """
    by_id = {row.request_id: row for row in rows}
    known = [by_id[each] for each in blocks.request_id]
    depths = [
        row.depth if row.expert == expert else depth
        for row, expert, depth in zip(known, blocks.expert, blocks.depth.tolist(), strict=True)
    ]
    return replace(
        blocks,
        prompt_id=np.array([row.prompt_id for row in known], object),
        workload=np.array([row.workload for row in known], object),
        split=np.array(["train" if row.split == "train" else "held_out" for row in known], object),
        depth=np.array(depths, np.int64),
    )
