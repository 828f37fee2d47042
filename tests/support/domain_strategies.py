"""Hypothesis strategies for the shared domain types: anything the wire can hold, legal or not."""

from hypothesis import strategies as st

from services.common.expert import Expert
from services.common.expert_profiles import PROFILES
from services.common.outcome import Outcome
from services.common.types import (
    ChoiceEnd,
    Delta,
    ExpertChoice,
    Finished,
    PromptLogprobs,
    RepetitionDetection,
    ReplicaInfo,
    ReplicaState,
    RoutedExpert,
    SamplingOptions,
    ScoredExpert,
    SpeculationUsage,
    StructuredOutput,
    Submission,
    TokenLogprob,
    Usage,
)

uint32 = st.integers(0, 2**32 - 1)
uint64 = st.integers(0, 2**64 - 1)
int32 = st.integers(-(2**31), 2**31 - 1)
float32 = st.floats(width=32, allow_nan=False)
text = st.text(max_size=20)  # Hypothesis gives no surrogates by default.
seconds = st.none() | st.floats(0, 1e6)


def tuples_of(elements: st.SearchStrategy, max_size: int = 4) -> st.SearchStrategy:
    return st.lists(elements, max_size=max_size).map(tuple)


token_logprobs = st.builds(
    TokenLogprob, token_id=uint32, logprob=float32, rank=st.none() | uint32, token=st.binary(max_size=6)
)
positions = tuples_of(tuples_of(token_logprobs))
deltas = st.builds(Delta, index=uint32, text=text, token_ids=tuples_of(uint32), logprobs=positions)
prompt_logprobs = st.builds(PromptLogprobs, positions=positions)
usages = st.builds(
    Usage,
    prompt_tokens=uint32,
    output_tokens=uint32,
    cached_tokens=uint32,
    preemptions=uint32,
    queue_seconds=seconds,
    first_token_seconds=seconds,
    total_seconds=seconds,
    speculation=st.none() | st.builds(SpeculationUsage, draft_tokens=uint32, blocks_by_accepted=tuples_of(uint32)),
)
choice_ends = st.builds(ChoiceEnd, index=uint32, outcome=st.sampled_from(Outcome), stop=st.none() | text | uint32)
finished = st.builds(
    Finished,
    outcome=st.sampled_from(Outcome),
    choices=tuples_of(choice_ends),
    usage=usages,
    message=text,
    retry_after_ms=st.none() | uint32,
    invalid_field=text,
)
events = deltas | prompt_logprobs | finished

structured_outputs = st.one_of(
    st.builds(
        StructuredOutput,
        kind=st.sampled_from(["json_schema", "regex", "grammar", "structural_tag"]),
        text=text,
        disable_any_whitespace=st.booleans(),
        disable_additional_properties=st.booleans(),
        whitespace_pattern=st.none() | text,
    ),
    st.builds(StructuredOutput, kind=st.just("json_object")),
    st.builds(StructuredOutput, kind=st.just("choice"), choices=tuples_of(text)),
)
sampling_options = st.builds(
    SamplingOptions,
    n=uint32,
    presence_penalty=float32,
    frequency_penalty=float32,
    repetition_penalty=float32,
    temperature=float32,
    top_p=float32,
    top_k=uint32,
    min_p=float32,
    seed=st.none() | st.integers(-(2**63), 2**63 - 1),
    stop=tuples_of(text),
    stop_token_ids=tuples_of(uint32),
    ignore_eos=st.booleans(),
    max_tokens=st.none() | uint32,
    min_tokens=uint32,
    logprobs=st.none() | int32,
    prompt_logprobs=st.none() | int32,
    detokenize=st.booleans(),
    skip_special_tokens=st.booleans(),
    spaces_between_special_tokens=st.booleans(),
    include_stop_str_in_output=st.booleans(),
    structured_output=st.none() | structured_outputs,
    logit_bias=st.none() | st.dictionaries(uint32, float32, min_size=1, max_size=4),
    allowed_token_ids=tuples_of(uint32),
    bad_words=tuples_of(text),
    logprob_token_ids=tuples_of(uint32),
    thinking_token_budget=st.none() | uint32,
    stream_interval=st.none() | uint32,
    skip_reading_prefix_cache=st.none() | st.booleans(),
    repetition_detection=st.none()
    | st.builds(RepetitionDetection, max_pattern_size=uint32, min_pattern_size=uint32, min_count=uint32),
    extra_args_json=st.none() | text,
    expert=st.none() | text,
    draft_tokens=st.none() | uint32,
    profile=st.none() | st.sampled_from(list(PROFILES)),
)
routed_experts = st.builds(
    RoutedExpert,
    expert=st.sampled_from([each.value for each in Expert]),
    first_draft_tokens=uint32,
    first_block_only=st.booleans(),
)
expert_choices = st.builds(
    ExpertChoice,
    expert=text,
    first_draft_tokens=st.none() | uint32,
    reason=text,
    profile=text,
    scores=tuples_of(
        st.builds(ScoredExpert, expert=text, draft_tokens=uint32, utility=float32, speedup=float32, wasted=float32)
    ),
)
submissions = st.builds(
    Submission,
    request_id=text,
    prompt_token_ids=tuples_of(uint32, max_size=20),
    sampling=sampling_options,
    priority=int32,
    timeout_s=st.none() | st.integers(0, 2**32 - 1).map(lambda ms: ms / 1e3),
    traceparent=text,
    tracestate=text,
    final_only=st.booleans(),
    reservation_id=text,
    tenant=text,
    reasoning_ended=st.none() | st.booleans(),
    expert=st.none() | routed_experts,
)
replica_infos = st.builds(
    ReplicaInfo,
    replica_id=text,
    generation=uint64,
    model_names=tuples_of(text),
    model=text,
    max_model_len=uint32,
    vocab_size=uint32,
    dtype=text,
    pipeline_stages=uint32,
    tensor_parallel_ranks=uint32,
    total_blocks=uint64,
    block_size=uint32,
    max_running_requests=uint32,
    max_waiting_requests=uint32,
    state=st.sampled_from(ReplicaState),
    running_requests=uint32,
    waiting_requests=uint32,
    forerun_version=text,
    vllm_version=text,
    free_blocks=uint64,
    experts=tuples_of(text),
    deepest_draft_tokens=uint32,
)
