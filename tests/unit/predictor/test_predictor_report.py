"""Labels, cut-offs and accuracies, on numbers that can be checked by hand and on random ones."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.predictor.training.cut_offs import LEAST_POSITIVES, NEVER, choose_cut_off, measure
from services.predictor.training.evaluation import constant_hazard, evaluate
from services.predictor.training.examples import Examples


def make_examples(*answers: tuple[int, bool]) -> Examples:
    """Answers by their tokens and whether they were cut."""
    lengths = np.array([length for length, _ in answers])
    ages = np.concatenate([np.arange(length) for length in lengths])
    return Examples(
        states=np.zeros((lengths.sum(), 2), np.float16),
        answer_tokens=ages,
        remaining=np.repeat(lengths, lengths) - ages,
        is_cut=np.repeat([cut for _, cut in answers], lengths),
        prompt_ids=[str(index) for index in range(len(answers))],
        answer_of=np.repeat(np.arange(len(answers)), lengths),
    )


def test_an_answer_ends_within_what_follows() -> None:
    labels, known = make_examples((5, False)).labels((1, 4))
    assert known.all()
    assert labels.tolist() == [[False, False], [False, True], [False, True], [False, True], [True, True]]


def test_of_a_cut_answer_only_what_is_certain_counts() -> None:
    labels, known = make_examples((5, True)).labels((1, 4))
    assert not labels.any()
    assert known[:, 1].tolist() == [True, True, False, False, False], "with 3 left it may have ended at 4"
    assert known[:, 0].all()


def test_answers_are_taken_apart_by_prompt() -> None:
    examples = make_examples((3, False), (2, True), (4, False))
    assert examples.of({"0", "2"}).remaining.tolist() == [3, 2, 1, 4, 3, 2, 1]
    assert len(examples.of(set())) == 0


chances = st.lists(st.tuples(st.integers(0, 20), st.booleans()), min_size=1, max_size=200)


@given(chances, st.sampled_from([0.5, 0.7, 0.83]))
def test_the_cut_off_is_the_lowest_that_is_right_often_enough(pairs: list[tuple[int, bool]], precision: float) -> None:
    values, labels = np.array([value / 20 for value, _ in pairs], np.float32), np.array([label for _, label in pairs])
    cut_off = choose_cut_off(values, labels, precision)

    def is_good(candidate: float) -> bool:
        said = values >= candidate
        return bool(said.sum() >= LEAST_POSITIVES and labels[said].mean() >= precision)

    good = [float(candidate) for candidate in np.unique(values) if is_good(candidate)]
    assert cut_off == pytest.approx(min(good, default=NEVER))


def test_accuracy_of_a_cut_off() -> None:
    values, labels = np.array([0.9, 0.8, 0.3, 0.2], np.float32), np.array([True, False, True, False])
    accuracy = measure(values, labels, 0.8)
    assert (accuracy.tokens, accuracy.base_rate, accuracy.precision, accuracy.recall) == (4, 0.5, 0.5, 0.5)
    silent = measure(values, labels, NEVER)
    assert (silent.precision, silent.recall) == (1.0, 0.0)


def test_cut_offs_are_set_on_validation_and_judged_elsewhere() -> None:
    validation, other = make_examples(*[(40, False)] * 10), make_examples(*[(20, False)] * 10)
    report = evaluate(
        {
            "model": lambda data: np.stack([1.0 - data.answer_tokens / 100, data.answer_tokens / 100], 1).astype("f4"),
            "constant hazard": constant_hazard(validation, (4, 8)),
        },
        validation,
        {"other": other},
        (4, 8),
        0.83,
    )
    cuts = report.cut_offs["model"]
    assert cuts[0] == NEVER, "what falls where it should rise is never right"
    assert cuts[1] == pytest.approx(0.31), "32 tokens of 40 are 8 from the end; one more is wrong"
    assert report.accuracy["model"]["other"][1].recall == 0.0
    assert report.cut_offs["constant hazard"] == (NEVER, NEVER)
    assert report.recall_mean == 0.0
    hazard = 1 / 40
    chances = [1 - (1 - hazard) ** threshold for threshold in (4, 8)]
    by_hand = (
        -sum(
            share * math.log(chance) + (1 - share) * math.log(1 - chance)
            for share, chance in zip((0.2, 0.4), chances, strict=True)
        )
        / 2
    )
    assert report.losses["constant hazard"]["other"] == pytest.approx(by_hand, rel=1e-5)
