"""Comparing the answers of two pipelines, and finding stored ones again."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks.equality.pair import Pair
from benchmarks.equality.parts import Part, PartStore, Side
from benchmarks.equality.work import Work

SIDE = Side("float32", [3, 3], None)


class Letters:
    """A tokenizer whose tokens are letters."""

    def decode(self, tokens: list[int]) -> str:
        return "".join(chr(97 + token) for token in tokens)


def part(*answers: list[int], **counts: int) -> Part:
    return Part(list(answers), **({"drafted": 0, "accepted": 0, "dropped": 0} | counts), seconds=1.0)


def pair(plain: dict[int, Part], speculating: dict[int, Part]) -> Pair:
    return Pair("float32", 2, [Work("chat", [1]), Work("code", [2])], plain, speculating)


def medians(made: Pair) -> dict[str, float]:
    return {name: figure.median for name, figure in made.figures().items()}


def test_equal_answers_differ_nowhere() -> None:
    same = pair({1: part([1, 2], [3])}, {1: part([1, 2], [3], drafted=5, accepted=2, dropped=1)})
    assert same.differing == 0
    assert same.divergences(Letters()) == []
    assert medians(same) == {
        "float32_sp_differing_p2_b1": 0,
        "float32_drafted_p2": 5,
        "float32_accepted_p2": 2,
        "float32_dropped_p2": 1,
    }


@pytest.mark.parametrize(("said", "position"), [([3, 5], 1), ([3], 1), ([3, 4, 4], 2), ([], 0)])
def test_another_token_and_another_length_are_told_with_their_place(said: list[int], position: int) -> None:
    (told,) = pair({8: part([1], [3, 4])}, {8: part([1], said)}).divergences(Letters())
    assert told == {
        "dtype": "float32",
        "stages": 2,
        "batch": 8,
        "request": 1,
        "kind": "code",
        "position": position,
        "plain": "de",
        "speculating": Letters().decode(said),
    }


def test_shorter_answers_of_one_batch_are_compared_as_far_as_they_go() -> None:
    plain = {1: part([1, 2], [3, 4]), 8: part([1, 2, 3, 4], [3, 5, 6, 7])}
    assert medians(pair(plain, {}))["float32_plain_differing_p2_b1_b8"] == 1


def test_a_stored_part_comes_back_under_the_same_conditions_only(tmp_path: Path) -> None:
    def store(**conditions: Any) -> PartStore:
        return PartStore(tmp_path / "parts", {"tokens": 4} | conditions)

    written = part([1, 2], [3], drafted=5)
    assert store().read(SIDE, 8) is None
    store().write(SIDE, 8, written)
    assert store().read(SIDE, 8) == written
    assert store().read(SIDE, 1) is None
    assert store(tokens=5).read(SIDE, 8) is None
    assert store().read(Side("float32", [4, 2], None), 8) is None


def test_a_part_with_drafts_is_made_again_when_the_adapter_changes(tmp_path: Path) -> None:
    weights = tmp_path / "adapter.safetensors"
    weights.write_bytes(b"one")
    side, store = Side("float32", [3, 3], tmp_path), PartStore(tmp_path / "parts", {})
    store.write(side, 8, part([1]))
    assert store.read(side, 8) is not None
    weights.write_bytes(b"two")
    assert store.read(side, 8) is None
