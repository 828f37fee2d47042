"""What is read of a prompt."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from services.common.types import SamplingOptions, StructuredOutput
from services.router.apex.prompt_features import END, NEWEST, SCALARS, feature_count, prompt_features

TABLE = np.stack([np.arange(50), -np.arange(50)], axis=1).astype(np.float16)


def features(*prompt: int, answer_tokens: int = 10, **sampling: object) -> dict[str, float]:
    found = prompt_features(prompt, SamplingOptions(**sampling), answer_tokens, TABLE)  # type: ignore[arg-type]
    names = (*SCALARS, "mean_0", "mean_1", "end_0", "end_1")
    return dict(zip(names, found.tolist(), strict=True))


def test_a_text_of_one_token_repeats_and_has_no_entropy() -> None:
    found = features(*[7] * 200)
    assert found["entropy"] == found["end_entropy"] == 0.0
    assert found["repeated_2"] > 0.99
    assert found["mean_0"] == found["end_0"] == 7.0
    assert found["mean_1"] == -7.0


def test_a_text_of_different_tokens_has_all_entropy_and_repeats_nothing() -> None:
    found = features(*range(50))
    assert np.isclose(found["entropy"], 1.0)
    assert found["repeated_2"] == found["repeated_3"] == 0.0


def test_repetition_is_of_ngrams() -> None:
    found = features(1, 2, 3, 1, 2, 4)
    assert np.isclose(found["repeated_2"], 1 / 5)
    assert found["repeated_3"] == 0.0


def test_the_end_counts_by_itself() -> None:
    found = features(*range(50), *[3] * END)
    assert found["end_entropy"] == 0.0
    assert found["end_0"] == 3.0
    assert found["entropy"] > 0.3


def test_the_decoding_configuration() -> None:
    found = features(1, answer_tokens=9, temperature=0.5, top_p=0.25, structured_output=StructuredOutput("json_object"))
    assert np.isclose(found["log_answer_tokens"], np.log(10))
    assert (found["temperature"], found["top_p"], found["is_structured"]) == (0.5, 0.25, 1.0)


@given(st.lists(st.integers(0, 49), min_size=1, max_size=300), st.integers(1, 5000))
def test_features_are_finite_and_within_bounds(prompt: list[int], answer_tokens: int) -> None:
    found = prompt_features(prompt, SamplingOptions(), answer_tokens, TABLE)
    assert found.shape == (feature_count(2),)
    assert np.isfinite(found).all()
    assert ((found[1:6] >= -1e-6) & (found[1:6] <= 1 + 1e-6)).all()


def test_a_long_prompt_is_read_from_its_end() -> None:
    long = [1] * NEWEST + list(range(50)) * (NEWEST // 50)
    found = features(*long)
    assert np.isclose(found["log_prompt_tokens"], np.log1p(len(long)))
    assert np.isclose(found["mean_0"], np.mean(long[-NEWEST:]), atol=0.1)
