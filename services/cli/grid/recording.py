"""The blocks that the replica records while the grid asks it: taken away as they come, and sorted by request."""

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from services.router.apex.training.request_table import RequestRow
from services.scheduler.apex.block_table import BlockTable, join_tables, read_file

PATIENCE_S = 15.0
"""A replica writes after about a second; what has not come by then was dropped."""
_POLL_S = 0.2


class Recording:
    """The folder that the replica records into."""

    def __init__(self, folder: Path) -> None:
        """Empties the folder: files of an interrupted run belong to requests that will be asked again."""
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.iterdir():
            path.unlink()
        self._blocks: dict[str, list[BlockTable]] = defaultdict(list)

    async def take(
        self, rows: Sequence[RequestRow], patience_s: float = PATIENCE_S
    ) -> tuple[list[RequestRow], list[BlockTable]]:
        """Waits for the blocks of ended requests.

        Returns:
            The requests of which all blocks have come, and these blocks. Those of the others are forgotten.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + patience_s
        self._collect()
        while any(not self._is_whole(row) for row in rows) and loop.time() < deadline:
            await asyncio.sleep(_POLL_S)
            self._collect()
        whole = [row for row in rows if self._is_whole(row)]
        found = [table for row in whole for table in self._blocks.get(row.request_id, ())]
        self._blocks.clear()
        return whole, found

    def _collect(self) -> None:
        for path in sorted(self.folder.glob("*.parquet")):
            table = read_file(path)
            path.unlink()
            for request_id in dict.fromkeys(table.request_id):
                self._blocks[request_id].append(table.of_rows(np.asarray(table.request_id == request_id)))

    def _is_whole(self, row: RequestRow) -> bool:
        """Every token came in a block, but for the first, and one for each time that the request was preempted."""
        emitted = sum(int(table.emitted.sum()) for table in self._blocks.get(row.request_id, ()))
        return emitted >= row.answer_tokens - 1 - row.preemptions


def joined(tables: Sequence[BlockTable]) -> BlockTable:
    """All blocks; also of no table."""
    return join_tables(tables) if tables else BlockTable.of([])
