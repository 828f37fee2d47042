"""What the client speaks beside the shared domain types."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from services.common.types import ExpertChoice, GenerationEvent, ReplicaState


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One turn of a conversation; roles are those of the model's chat template."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Chat:
    """A conversation with extra arguments for the model's chat template."""

    messages: Sequence[ChatMessage]
    template_arguments: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Started:
    """A replica accepted the request and has begun to answer. Comes once, first."""

    request_id: str
    replica_id: str
    trace_id: str
    """W3C trace id; ``forerun trace`` draws it."""
    prompt_tokens: int
    expert_choice: ExpertChoice | None = None
    """Who drafts, where the router chose or the request asked for it."""


ClientEvent = Started | GenerationEvent
"""``Started``, any number of deltas and prompt log probabilities, then one ``Finished`` with STOP or LENGTH."""


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What a router serves."""

    model_names: tuple[str, ...]
    max_model_len: int
    """Context length in tokens, prompt and answer together."""
    vocab_size: int
    dtype: str
    forerun_version: str
    vllm_version: str


@dataclass(frozen=True, slots=True)
class Replica:
    """One replica as a router sees it; counts are KV blocks or requests."""

    replica_id: str
    address: str
    state: ReplicaState
    total_blocks: int
    free_blocks: int
    reserved_blocks: int
    in_flight_requests: int
    running_requests: int
    waiting_requests: int
    pipeline_stages: int
    tensor_parallel_ranks: int


@dataclass(frozen=True, slots=True)
class ReplicaList:
    """The replicas behind a router."""

    replicas: tuple[Replica, ...]
    ledger_reachable: bool
    """False: routing uses the ledger's last view."""
