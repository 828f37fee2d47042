"""What changes the fingerprint, and what does not."""

import json

import pytest

from services.common.fingerprint import fingerprint

ARGS = json.dumps({"model": "m", "dtype": "bfloat16"})
MODEL = json.dumps({"hidden_size": 576})


def test_key_order_does_not_matter() -> None:
    reordered = json.dumps({"dtype": "bfloat16", "model": "m"})
    assert fingerprint(ARGS, MODEL, "0.32.0") == fingerprint(reordered, MODEL, "0.32.0")


@pytest.mark.parametrize(
    ("arguments", "model", "version"),
    [
        (json.dumps({"model": "m", "dtype": "float32"}), MODEL, "0.32.0"),
        (ARGS, json.dumps({"hidden_size": 577}), "0.32.0"),
        (ARGS, MODEL, "0.32.1"),
    ],
)
def test_whatever_changes_the_computation_changes_it(arguments: str, model: str, version: str) -> None:
    assert fingerprint(arguments, model, version) != fingerprint(ARGS, MODEL, "0.32.0")
