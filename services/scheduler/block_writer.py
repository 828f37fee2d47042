"""Writes the blocks that a replica verifies into Parquet files, on a thread of its own that no step waits for.

A file has the blocks of about a second, so that whoever reads them need not wait long. Relies on (vLLM 0.32,
``InputProcessor.assign_request_id``, ``ParentRequest``): vLLM appends ``-`` and 8 hex digits to a request's id,
and puts ``index_`` before it where a request has several choices. Our sessions put ``ROUTER.NUMBER.`` before it.
"""

import queue
import re
import threading
import time
from pathlib import Path
from typing import Final

import structlog
from prometheus_client import CollectorRegistry, Counter

from services.scheduler.apex.block import Block
from services.scheduler.apex.block_table import BlockRow, write_blocks

MAX_WAITING: Final = 16_384
"""Blocks that may wait to be written; more are dropped and counted."""

FLUSH_S: Final = 1.0
"""A block is written at most so long after it was verified, while the disk keeps up."""

BLOCKS_AT_ONCE: Final = 1024
"""In one file: making its columns keeps Python from the engine's thread for about a millisecond."""

CLOSE_TIMEOUT_S: Final = 3.0

_ENGINE_ID = re.compile(r"(\d+_)?.+?\.\d+\.(.+)-[0-9a-f]{8}")
_log = structlog.get_logger(__name__)


class BlockWriter:
    """``put`` never blocks. ``close`` writes what waits and ends the thread."""

    def __init__(self, folder: Path, source: str, registry: CollectorRegistry, max_waiting: int = MAX_WAITING) -> None:
        """Makes the folder.

        Args:
            folder: may hold other replicas' files.
            source: begins the files' names; no other start of a replica may have it.
            registry: gets the counters.
            max_waiting: see ``MAX_WAITING``.

        Raises:
            OSError: the folder cannot be made.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._source = source
        self._max_waiting = max_waiting
        self._written = Counter("forerun_block_records_total", "Blocks that were recorded.", registry=registry)
        self._dropped = Counter(
            "forerun_block_records_dropped_total", "Blocks that could not be recorded.", registry=registry
        )
        self._files = 0
        self._waiting: queue.SimpleQueue[tuple[str, Block] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="block-writer", daemon=True)
        self._thread.start()

    def put(self, request_id: str, block: Block) -> None:
        """Hands a block with its features over; one without is dropped, too."""
        if block.features is not None and self._waiting.qsize() < self._max_waiting:
            self._waiting.put((request_id, block))
        else:
            self._dropped.inc()

    def close(self) -> None:
        """Bounded in time."""
        self._waiting.put(None)
        self._thread.join(CLOSE_TIMEOUT_S)

    def _run(self) -> None:
        goes_on = True
        while goes_on:
            rows, goes_on = self._collect()
            if rows:
                self._write(rows)

    def _collect(self) -> tuple[list[BlockRow], bool]:
        """The next file's blocks, and whether more may follow."""
        rows: list[BlockRow] = []
        until = None
        while len(rows) < BLOCKS_AT_ONCE:
            try:
                given = self._waiting.get(timeout=None if until is None else max(0.0, until - time.monotonic()))
            except queue.Empty:
                break
            if given is None:
                return rows, False
            rows.append(row_of(*given))
            until = until or time.monotonic() + FLUSH_S
        return rows, True

    def _write(self, rows: list[BlockRow]) -> None:
        path = self._folder / f"{self._source}-{self._files:06d}.parquet"
        self._files += 1
        try:
            write_blocks(path, rows)
        except OSError as error:
            _log.error("blocks could not be recorded", file=str(path), blocks=len(rows), problem=str(error))
            self._dropped.inc(len(rows))
        else:
            self._written.inc(len(rows))


def row_of(request_id: str, block: Block) -> BlockRow:
    """What a replica knows of a block that has features."""
    assert block.features is not None
    asked_as = client_id(request_id)
    return BlockRow(
        request_id=asked_as,
        prompt_id=asked_as,
        workload="",
        split="train",
        expert=block.choice.expert.value,
        depth=block.choice.depth,
        drafted=block.drafted,
        accepted=block.accepted,
        emitted=block.emitted,
        index=block.index,
        requests=block.requests,
        rows=block.rows,
        draft_s=block.draft_s,
        verify_s=block.verify_s,
        features=block.features,
    )


def client_id(request_id: str) -> str:
    """The id that the client gave, or the router for it, from that of the engine core; of n choices, each its own."""
    if (parts := _ENGINE_ID.fullmatch(request_id)) is None:
        return request_id
    return (parts[1] or "") + parts[2]
