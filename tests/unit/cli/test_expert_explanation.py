"""What ``forerun generate --explain`` says."""

import io

import pytest
from rich.console import Console

from services.cli.expert_explanation import SHOWN, explain_choice
from services.common.types import ExpertChoice, ScoredExpert


def told(choice: ExpertChoice | None) -> str:
    output = io.StringIO()
    explain_choice(choice, Console(file=output, width=100))
    return output.getvalue()


@pytest.mark.parametrize(
    ("choice", "says"),
    [
        (None, "as the replica chose"),
        (ExpertChoice("ngram", 8, "learned", "speed"), "drafts: ngram, 8 in the first block; the route model"),
        (ExpertChoice("plain", 0, "not-possible", "speed"), "drafts: plain; min_p and logit_bias"),
        (ExpertChoice("", None, "fallback", "speed"), "drafts: as the replica chose; the route model gave no"),
        (ExpertChoice("eagle3", None, "pinned", "balanced"), "eagle3; the request asked for it (profile balanced)"),
        (ExpertChoice("eagle3", 2, "of-tomorrow", "speed"), "of-tomorrow"),
    ],
)
def test_who_drafts_and_why(choice: ExpertChoice | None, says: str) -> None:
    assert says in told(choice)


def test_the_best_scores_are_shown_and_the_others_counted() -> None:
    scores = tuple(ScoredExpert("ngram", depth, -depth / 10, 1.5, 0.25) for depth in range(1, SHOWN + 4))
    text = told(ExpertChoice("ngram", 1, "learned", "speed", scores))
    assert text.count("ngram") == SHOWN + 1
    assert "-0.100" in text
    assert "1.50" in text
    assert "and 3 more" in text
