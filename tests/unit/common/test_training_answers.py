"""Answers: shards that are whole or absent, a batch that stays full, and runs that go on where they were cut."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.common.training.answer_shards import Answer, AnswerShards, read_shard
from services.common.training.answers import AnswerOptions, generate_answers
from services.common.training.prompt import Message, Prompt


def make_answer(prompt_id: str, prompt: list[int], answer: list[int]) -> Answer:
    return Answer(prompt_id, np.array(prompt, np.int32), np.array(answer, np.int32))


def assert_same(first: Answer, second: Answer) -> None:
    assert first.prompt_id == second.prompt_id
    for name in ("prompt", "answer"):
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name))
        assert getattr(first, name).dtype == getattr(second, name).dtype


token_ids = st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=5)


@given(st.lists(st.tuples(st.integers(0, 2**64 - 1), token_ids, token_ids), min_size=1, max_size=5))
def test_a_shard_gives_back_what_it_was_given(rows: list[tuple[int, list[int], list[int]]]) -> None:
    import tempfile  # noqa: PLC0415  (hypothesis and tmp_path do not go together)

    answers = [make_answer(f"{number:016x}", prompt, answer) for number, prompt, answer in rows]
    with tempfile.TemporaryDirectory() as folder:
        path = AnswerShards(Path(folder)).append(answers)
        for wrote, read in zip(answers, read_shard(path), strict=True):
            assert_same(wrote, read)


def test_a_shard_that_was_not_finished_is_not_read(tmp_path: Path) -> None:
    shards = AnswerShards(tmp_path)
    path = shards.append([make_answer("01", [1], [2])])
    path.with_name("answers-00001.part").write_bytes(path.read_bytes()[:20])
    assert shards.paths() == [path]
    assert shards.append([make_answer("02", [1], [2])]).name == "answers-00001.safetensors"


class ScriptedTarget:
    """Ends each answer after as many steps as the prompt's text is long; remembers how full the batch was."""

    def __init__(self) -> None:
        self.running: dict[str, int] = {}
        self.added: list[str] = []
        self.fill: list[int] = []

    def add(self, prompt: Prompt) -> bool:
        text = prompt.messages[-1].content
        if text.startswith("too long"):
            return False
        self.added.append(prompt.id)
        self.running[prompt.id] = len(text)
        return True

    def step(self) -> list[Answer]:
        self.fill.append(len(self.running))
        self.running = {prompt: left - 1 for prompt, left in self.running.items()}
        ended = [prompt for prompt, left in self.running.items() if left == 0]
        for prompt in ended:
            del self.running[prompt]
        return [make_answer(prompt, [1, 2], [3]) for prompt in ended]


def make_prompts(texts: list[str]) -> list[Prompt]:
    return [Prompt.make("chat", "test", "train", [Message("user", text)]) for text in texts]


PROMPTS = make_prompts([f"{index:02d}" + "x" * (index % 7) for index in range(40)])
OPTIONS = AnswerOptions(batch=4, shard=8)


def answered(shards: AnswerShards) -> list[str]:
    return [answer.prompt_id for answer in shards]


def test_every_prompt_is_answered_once_and_the_batch_stays_full(tmp_path: Path) -> None:
    shards, target = AnswerShards(tmp_path), ScriptedTarget()
    generate_answers(lambda: target, PROMPTS, shards, OPTIONS, lambda _: False)
    assert sorted(answered(shards)) == sorted(prompt.id for prompt in PROMPTS)
    assert target.added == [prompt.id for prompt in PROMPTS]
    assert set(target.fill[: target.fill.index(3)]) == {OPTIONS.batch}
    assert len(shards.paths()) == len(PROMPTS) / OPTIONS.shard


def test_an_interrupted_run_goes_on_with_what_no_shard_holds(tmp_path: Path) -> None:
    shards, seen = AnswerShards(tmp_path), 0

    def interrupt(_: Answer) -> bool:
        nonlocal seen
        seen += 1
        if seen == 20:
            raise KeyboardInterrupt
        return False

    with pytest.raises(KeyboardInterrupt):
        generate_answers(ScriptedTarget, PROMPTS, shards, OPTIONS, interrupt)
    kept = answered(shards)
    assert len(kept) == 16
    second = ScriptedTarget()
    generate_answers(lambda: second, PROMPTS, shards, OPTIONS, lambda _: False)
    assert not set(second.added) & set(kept)
    assert sorted(answered(shards)) == sorted(prompt.id for prompt in PROMPTS)


def test_enough_is_enough_and_is_stored(tmp_path: Path) -> None:
    shards = AnswerShards(tmp_path)
    count = 0

    def on_answer(_: Answer) -> bool:
        nonlocal count
        count += 1
        return count == 11

    generate_answers(ScriptedTarget, PROMPTS, shards, OPTIONS, on_answer)
    assert len(answered(shards)) == 11


def test_prompts_that_are_too_long_are_left_out(tmp_path: Path) -> None:
    shards = AnswerShards(tmp_path)
    prompts = make_prompts(["too long 1", "short", "too long 2"])
    generate_answers(ScriptedTarget, prompts, shards, OPTIONS, lambda _: False)
    assert answered(shards) == [prompts[1].id]


def test_with_nothing_left_to_answer_the_target_is_not_started(tmp_path: Path) -> None:
    shards = AnswerShards(tmp_path)
    generate_answers(ScriptedTarget, PROMPTS[:3], shards, OPTIONS, lambda _: False)

    def fail() -> ScriptedTarget:
        raise AssertionError("the target was started")

    generate_answers(fail, PROMPTS[:3], shards, OPTIONS, lambda _: False)
