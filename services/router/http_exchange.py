"""What the HTTP edge knows of one exchange, shared between its middleware and the engine client deep inside vLLM's app.

A context variable carries it, since vLLM hands neither headers nor response down to the engine client.
"""

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field

from services.common.errors import RequestEndedError
from services.common.types import ExpertChoice


@dataclass(slots=True)
class HttpExchange:
    """One HTTP request and its response."""

    headers: Mapping[str, str] = field(default_factory=dict)
    """Of the request; names in lower case."""
    tenant: str = ""
    """On whose behalf."""
    is_counted: bool = False
    """The domain call has it, and counts how it ends."""
    has_output: bool = False
    """A replica has begun to answer."""
    trace_id: str = ""
    """Known once a replica has begun to answer."""
    expert_choice: ExpertChoice | None = None
    """See ``Started``."""
    ended: RequestEndedError | None = None
    """What ended the request, when it was not the engine; the first, where one exchange carries several prompts."""


CURRENT_EXCHANGE: ContextVar[HttpExchange | None] = ContextVar("http_exchange", default=None)
