"""The features of papers/apex section 4.1 by name; training and serving read them in this order."""

from typing import Final

from services.common.expert import Expert

FEATURES_VERSION: Final = 1
"""Raised with every change of the list or of what a name means: a model of another version must not be used."""

OF_REQUEST: Final = (
    "progress",  # answer tokens over most of them
    "answer_tokens",  # log(1 + n)
    "prompt_tokens",  # log(1 + n)
    "entropy",  # of the newest tokens, over the largest possible
    "repeated_2",  # share of the newest tokens that end a pair seen before
    "repeated_3",  # the same for triples
    "emitted_fast",  # moving average of tokens a block, plain ones included
    "emitted_slow",
    "step_requests",  # log(1 + n) of the newest block's step
)
OF_EXPERT: Final = (
    "blocks",  # log(1 + n) with this expert
    "blocks_since",  # log(1 + n) since its newest one; since the beginning where there is none
    "last_accepted",  # of its newest block, tokens
    "last_drafted",
    "last_rejected_at",  # position from 1; 0: none was rejected
    "share_fast",  # moving average of accepted over drafted
    "share_slow",
    "length_fast",  # moving average of accepted tokens
    "length_slow",
)
OF_CANDIDATE: Final = ("ngram_match", "ngram_found")  # tokens

FEATURES: Final = (*OF_REQUEST, *OF_EXPERT, *OF_CANDIDATE)

TEXT_FEATURES: Final = ("entropy", "repeated_2", "repeated_3")
"""Without these in the ablation of entropy and repetition (section 5.4)."""
VERIFIER_FEATURES: Final = ("emitted_fast", "emitted_slow", *OF_EXPERT)
"""Without these in the ablation of verifier feedback."""

EXPERT_ROWS: Final = tuple(Expert)
"""Order of the experts wherever an array has one row for each."""
