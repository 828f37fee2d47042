"""What a replica may be told about its experts."""

from typing import Any

import pytest
from pydantic import ValidationError

from services.common.expert import DEPTHS
from services.scheduler.experts_config import ExpertsConfig


def test_ngrams_alone_are_what_nothing_means() -> None:
    config = ExpertsConfig()
    assert [each.value for each in config.experts] == ["plain", "ngram"]
    assert (config.depths, config.deepest) == (DEPTHS, DEPTHS[-1])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"ngram": None}, "has neither a drafter nor ngram"),
        ({"expert": "eagle3"}, "eagle3 is not among plain, ngram"),
        ({"depth": 8, "deepest": 4}, "8 is more than deepest 4"),
        ({"deepest": 17}, "less than or equal to 16"),
        ({"depths": [0, 5]}, "5 is not among 0, 1, 2"),
        ({"depths": [0]}, "has none from 1 to deepest 16"),
        ({"depths": [8, 16], "deepest": 4}, "has none from 1 to deepest 4"),
        ({"ngram": {"shortest_match": 4, "longest_match": 2}}, "2 is less than shortest_match 4"),
        ({"drafter": {"kind": "ngram", "model": "x"}}, "eagle3"),
    ],
)
def test_what_cannot_work_is_refused_with_field_and_fix(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        ExpertsConfig.model_validate(fields)
