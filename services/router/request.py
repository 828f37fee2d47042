"""What both edges hand to the one domain call, and what it yields. No protobuf, no HTTP, no vLLM."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from services.common.outcome import Outcome
from services.common.types import ExpertChoice, GenerationEvent, SamplingOptions

RETRIED = frozenset({Outcome.REPLICA_LOST, Outcome.REJECTED_OVERLOAD, Outcome.REJECTED_UNAVAILABLE})
"""What sends a request that has emitted nothing to a second replica."""


class Edge(StrEnum):
    """Where a request came in; the value is the metric label."""

    GRPC = "grpc"
    HTTP = "http"


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """Tokenized by the router, special tokens added as the model's tokenizer does."""

    text: str


@dataclass(frozen=True, slots=True)
class TokensPrompt:
    """Used as it is."""

    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One turn of a conversation."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """Rendered by the model's chat template."""

    messages: tuple[ChatMessage, ...]
    template_arguments: Mapping[str, object] = field(default_factory=dict)


Prompt = TextPrompt | TokensPrompt | ChatPrompt


@dataclass(frozen=True, slots=True)
class RouterRequest:
    """One request as it came in; nothing in it is trusted yet."""

    prompt: Prompt
    sampling: SamplingOptions
    edge: Edge
    request_id: str = ""
    """Empty: the router chooses."""
    model: str = ""
    """A served name; empty is the only one served."""
    priority: int = 0
    tenant: str = ""
    """On whose behalf."""
    final_only: bool = False
    timeout_s: float | None = None
    """Time that the client gives, in seconds; None: no deadline of its own."""
    traceparent: str = ""
    tracestate: str = ""
    reasoning_ended: bool | None = None
    operation: str = ""
    """GenAI operation name; empty: derived from the prompt's form."""


@dataclass(frozen=True, slots=True)
class Started:
    """A replica accepted the request and has begun to answer. Comes once, first."""

    request_id: str
    replica_id: str
    trace_id: str
    prompt_tokens: int
    expert_choice: ExpertChoice | None = None
    """None: the replica chooses, or does not speculate in blocks."""


RouterEvent = Started | GenerationEvent
"""``Started``, then any number of deltas and prompt log probabilities, then one ``Finished``."""
