"""``requests.parquet`` of ``forerun bench grid``: one row a request, all that route models learn from."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from services.common.errors import ConfigError
from services.common.expert import Expert
from services.common.expert_action import Action

Key = tuple[str, str, int]
"""Prompt id, expert, depth: what is recorded once."""


@dataclass(frozen=True, slots=True)
class RequestRow:
    """One request; times as its client saw them."""

    request_id: str
    prompt_id: str
    workload: str
    split: str
    expert: str
    depth: int
    concurrency: int
    """Requests that were asked at once."""
    max_tokens: int
    """Of the answer, as asked for."""
    answer_tokens: int
    seconds: float
    """From sending it to the last token."""
    first_token_s: float
    """From sending it to the first token; the prompt's blocks are in the prefix cache by then."""
    drafted: int
    accepted: int
    blocks: int
    """Verifying steps with drafts."""
    preemptions: int

    @property
    def key(self) -> Key:
        """What was asked."""
        return self.prompt_id, self.expert, self.depth

    @property
    def action(self) -> Action:
        """What it was pinned to."""
        return Action(Expert(self.expert), self.depth)


_TYPES: Final = {str: pa.string(), int: pa.int64(), float: pa.float64()}
_SCHEMA: Final = pa.schema([(name, _TYPES[kind]) for name, kind in RequestRow.__annotations__.items()])


def write_requests(path: Path, rows: Sequence[RequestRow]) -> None:
    """The whole file; it appears, or is replaced, when it is whole."""
    part = path.with_suffix(".part")
    pq.write_table(pa.Table.from_pylist([asdict(row) for row in rows], schema=_SCHEMA), part)
    part.replace(path)


def read_requests(path: Path) -> list[RequestRow]:
    """What ``write_requests`` wrote; nothing where there is no file.

    Raises:
        ConfigError: it is not such a file.
    """
    if not path.is_file():
        return []
    try:
        table = pq.read_table(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise ConfigError(f"{path}: cannot be read ({error}); record into another folder") from error
    if table.schema.names != _SCHEMA.names:
        raise ConfigError(f"{path}: has other columns than this version writes; record into another folder")
    return [RequestRow(**row) for row in table.to_pylist()]
