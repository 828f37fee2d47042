"""Block records in Parquet: what a replica writes while it serves, and what depth models are trained on.

One row a verified block. The columns are those of ``COLUMNS``; ``features`` holds what was known before the block, in
the order of ``FEATURES``, and the file says of which version they are. A replica knows no prompts: it writes each
request as a prompt of its own, of no workload, to be trained on; ``forerun bench grid`` knows better and says so.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from services.common.errors import ConfigError
from services.scheduler.apex.features import FEATURES, FEATURES_VERSION

VERSION_KEY: Final = b"forerun_features_version"


@dataclass(frozen=True, slots=True)
class BlockRow:
    """One block as it is written."""

    request_id: str
    prompt_id: str
    """The same for all requests with this prompt: what was reached with other experts and depths is compared by it."""
    workload: str
    """Empty: not known."""
    split: str
    """train or held_out."""
    expert: str
    depth: int
    """Draft tokens asked for."""
    drafted: int
    """Draft tokens verified."""
    accepted: int
    emitted: int
    index: int
    """Of the request's blocks, from 0."""
    requests: int
    """In the step."""
    rows: int
    """Tokens that the step ran."""
    draft_s: float
    verify_s: float
    features: Sequence[float] | NDArray[np.float32]
    """Of the block's expert, before the block."""


@dataclass(frozen=True, slots=True, eq=False)
class BlockTable:
    """Many blocks, column by column, [blocks] each; ``features`` is [blocks, features]. Columns as in ``BlockRow``."""

    request_id: NDArray[np.object_]
    prompt_id: NDArray[np.object_]
    workload: NDArray[np.object_]
    split: NDArray[np.object_]
    expert: NDArray[np.object_]
    depth: NDArray[np.int64]
    drafted: NDArray[np.int64]
    accepted: NDArray[np.int64]
    emitted: NDArray[np.int64]
    index: NDArray[np.int64]
    requests: NDArray[np.int64]
    rows: NDArray[np.int64]
    draft_s: NDArray[np.float64]
    verify_s: NDArray[np.float64]
    features: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.depth)

    @classmethod
    def of(cls, rows: Sequence[BlockRow]) -> "BlockTable":
        """The same blocks, by column."""
        columns: dict[str, NDArray[Any]] = {
            name: np.array([getattr(row, name) for row in rows], dtype) for name, dtype in _DTYPES.items()
        }
        features = np.array([row.features for row in rows], np.float32).reshape(len(rows), len(FEATURES))
        return cls(**columns, features=features)

    def of_rows(self, wanted: NDArray[np.bool_] | NDArray[np.int64]) -> "BlockTable":
        """Some of them."""
        return BlockTable(*(getattr(self, field.name)[wanted] for field in fields(self)))


_DTYPES: Final[dict[str, Any]] = {
    **dict.fromkeys(("request_id", "prompt_id", "workload", "split", "expert"), object),
    **dict.fromkeys(("depth", "drafted", "accepted", "emitted", "index", "requests", "rows"), np.int64),
    **dict.fromkeys(("draft_s", "verify_s"), np.float64),
}
_TYPES: Final[dict[Any, Any]] = {object: pa.string(), np.int64: pa.int64(), np.float64: pa.float64()}

COLUMNS: Final = pa.schema(
    [
        *(pa.field(name, _TYPES[dtype], nullable=False) for name, dtype in _DTYPES.items()),
        pa.field("features", pa.list_(pa.float32(), len(FEATURES)), nullable=False),
    ],
    metadata={VERSION_KEY: str(FEATURES_VERSION).encode()},
)


def write_blocks(path: Path, rows: Sequence[BlockRow]) -> None:
    """One file; appears when it is whole."""
    write_table(path, BlockTable.of(rows))


def write_table(path: Path, table: BlockTable) -> None:
    """As ``write_blocks``."""
    columns = [pa.array(getattr(table, name), _TYPES[dtype]) for name, dtype in _DTYPES.items()]
    features = pa.FixedSizeListArray.from_arrays(pa.array(table.features.reshape(-1)), len(FEATURES))
    part = path.with_suffix(".part")
    pq.write_table(pa.Table.from_arrays([*columns, features], schema=COLUMNS), part)
    part.replace(path)


def read_blocks(folder: Path) -> BlockTable:
    """All ``*.parquet`` of a folder, by name.

    Raises:
        ConfigError: there is none, or one is not such a file or has other features.
    """
    paths = sorted(folder.glob("*.parquet"))
    if not paths:
        raise ConfigError(f"{folder}: holds no *.parquet with block records; name the folder a replica recorded into")
    return join_tables([read_file(path) for path in paths])


def join_tables(tables: Sequence[BlockTable]) -> BlockTable:
    """The blocks of at least one table, in order."""
    return BlockTable(*(np.concatenate([getattr(each, field.name) for each in tables]) for field in fields(BlockTable)))


def read_file(path: Path) -> BlockTable:
    """One file. Raises ``ConfigError`` as ``read_blocks`` does."""
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise ConfigError(f"{path}: cannot be read ({error}); record it again") from error
    if (
        not table.schema.equals(COLUMNS)
        or (table.schema.metadata or {}).get(VERSION_KEY) != COLUMNS.metadata[VERSION_KEY]
    ):
        raise ConfigError(f"{path}: has other columns or features than this version records; record it again")
    columns = {name: np.asarray(table[name].to_numpy(), dtype) for name, dtype in _DTYPES.items()}
    features = table["features"].combine_chunks().flatten().to_numpy().reshape(-1, len(FEATURES))
    return BlockTable(**columns, features=features)
