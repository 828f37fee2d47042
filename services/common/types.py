"""Domain types that more than one service speaks. No protobuf, no vLLM: see ``convert.py`` for the wire."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

from services.common.expert_profiles import ProfileName
from services.common.outcome import Outcome


class ReplicaState(StrEnum):
    """Whether a replica takes requests."""

    SERVING = "serving"
    DRAINING = "draining"
    STALLED = "stalled"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class StructuredOutput:
    """The grammar of an answer: one kind of constraint and its text."""

    kind: Literal["json_schema", "json_object", "regex", "choice", "grammar", "structural_tag"]
    text: str = ""
    """The schema, expression, grammar or tag; empty for json_object and choice."""
    choices: tuple[str, ...] = ()
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None


@dataclass(frozen=True, slots=True)
class RepetitionDetection:
    """Ends an answer whose last tokens repeat a pattern of ``min..max_pattern_size`` tokens ``min_count`` times."""

    max_pattern_size: int
    min_pattern_size: int
    min_count: int


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """vLLM's sampling parameters as far as they make sense remotely; defaults are vLLM's own."""

    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    max_tokens: int | None = None
    """None: up to the context length."""
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    structured_output: StructuredOutput | None = None
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: tuple[int, ...] = ()
    bad_words: tuple[str, ...] = ()
    logprob_token_ids: tuple[int, ...] = ()
    thinking_token_budget: int | None = None
    stream_interval: int | None = None
    skip_reading_prefix_cache: bool | None = None
    repetition_detection: RepetitionDetection | None = None
    extra_args_json: str | None = None
    expert: str | None = None
    """One of ``services.common.expert.Expert``."""
    draft_tokens: int | None = None
    profile: ProfileName | None = None
    """How much wasted draft tokens count beside speed."""

    @property
    def allows_drafts(self) -> bool:
        """vLLM cannot judge drafts under the other options; such requests are served without."""
        return not self.min_p and not self.logit_bias


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One candidate at one position."""

    token_id: int
    logprob: float
    rank: int | None
    token: bytes


PositionLogprobs = tuple[TokenLogprob, ...]
"""Candidates at one position, the sampled (or prompt) token first; empty for a prompt's first token."""


@dataclass(frozen=True, slots=True)
class Delta:
    """New output of one choice. ``text`` may be empty while ``token_ids`` are not, and the other way round."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[PositionLogprobs, ...] = ()


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """Log probabilities of the prompt, one position a token."""

    positions: tuple[PositionLogprobs, ...]


@dataclass(frozen=True, slots=True)
class ChoiceEnd:
    """The end of one of the n choices; ``stop`` is the stop string or stop token id that matched."""

    index: int
    outcome: Outcome
    stop: str | int | None = None


@dataclass(frozen=True, slots=True)
class SpeculationUsage:
    """What became of a request's draft tokens. A block is one verifying step with drafts; a step without is none."""

    draft_tokens: int = 0
    """That were verified."""
    blocks_by_accepted: tuple[int, ...] = ()
    """Blocks by the number of their draft tokens that were accepted, from 0 on."""

    @property
    def accepted_tokens(self) -> int:
        return sum(accepted * blocks for accepted, blocks in enumerate(self.blocks_by_accepted))


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens and times (seconds, from arrival at the replica) of a whole request."""

    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    preemptions: int = 0
    queue_seconds: float | None = None
    first_token_seconds: float | None = None
    total_seconds: float | None = None
    speculation: SpeculationUsage | None = None
    """None where the replica does not speculate in blocks."""


@dataclass(frozen=True, slots=True)
class Finished:
    """The one end of a request."""

    outcome: Outcome
    choices: tuple[ChoiceEnd, ...] = ()
    usage: Usage = field(default_factory=Usage)
    message: str = ""
    retry_after_ms: int | None = None
    invalid_field: str = ""


GenerationEvent = Delta | PromptLogprobs | Finished
"""What a request yields: any number of the first two, then exactly one ``Finished``."""


@dataclass(frozen=True, slots=True)
class ScoredExpert:
    """What a router expects of one expert at one depth for a request."""

    expert: str
    draft_tokens: int
    utility: float
    """What was compared."""
    speedup: float
    """Tokens a second over those without drafts."""
    wasted: float
    """Rejected draft tokens for each token of the answer."""


@dataclass(frozen=True, slots=True)
class ExpertChoice:
    """Who drafts for a request, and why."""

    expert: str
    """One of ``services.common.expert.Expert``; empty: the replica chooses."""
    first_draft_tokens: int | None
    """Of the first block; None: the replica chooses."""
    reason: str
    """One of ``services.router.apex.expert_router.RouteReason``."""
    profile: str
    """One of ``services.common.expert_profiles.PROFILES``."""
    scores: tuple[ScoredExpert, ...] = ()
    """All that was compared, the best first."""


@dataclass(frozen=True, slots=True)
class RoutedExpert:
    """Who drafts for a request, as its router chose; what the request itself asks for takes precedence."""

    expert: str
    """One of ``services.common.expert.Expert``."""
    first_draft_tokens: int
    """Of the first block; 0 exactly where nobody drafts."""
    first_block_only: bool = False
    """True: the replica is free from the second block on. False: it keeps the expert and chooses depths."""


@dataclass(frozen=True, slots=True)
class Submission:
    """A tokenized request on its way from a router to a replica."""

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingOptions
    priority: int = 0
    timeout_s: float | None = None
    """Time left for the whole request; None: no deadline."""
    traceparent: str = ""
    tracestate: str = ""
    final_only: bool = False
    """One delta a choice, at the end."""
    reservation_id: str = ""
    reasoning_ended: bool | None = None
    tenant: str = ""
    """On whose behalf; replicas may share their time fairly between tenants."""
    expert: RoutedExpert | None = None
    """None: the replica chooses."""


@dataclass(frozen=True, slots=True)
class ReplicaInfo:
    """What a replica is and how it is."""

    replica_id: str
    generation: int
    model_names: tuple[str, ...]
    model: str
    max_model_len: int
    vocab_size: int
    dtype: str
    pipeline_stages: int
    tensor_parallel_ranks: int
    total_blocks: int
    block_size: int
    max_running_requests: int
    max_waiting_requests: int
    state: ReplicaState = ReplicaState.SERVING
    running_requests: int = 0
    waiting_requests: int = 0
    forerun_version: str = ""
    vllm_version: str = ""
    free_blocks: int = 0
    """KV blocks that a new request could take now."""
    experts: tuple[str, ...] = ()
    """Who can draft there, plain first; empty where the replica does not speculate in blocks."""
    deepest_draft_tokens: int = 0
    """Most draft tokens of a block."""

    @property
    def kind(self) -> tuple[object, ...]:
        """Replicas of one kind can do the same for a request."""
        return self.experts, self.deepest_draft_tokens, self.max_model_len, self.vocab_size
