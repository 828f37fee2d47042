"""Prompts without answers, to train on: there too the target knows what it expects next, and reading is cheap."""

from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
from transformers import AutoTokenizer

from services.workers.training.answer_shards import Answer, AnswerShards
from services.workers.training.prompt import Prompt

SHARD = 200

RenderPrompt = Callable[[Prompt], list[int] | None]
"""The token ids of a chat prompt; None when it is too long and left out."""


def prompt_renderer(model: Path, max_tokens: int) -> RenderPrompt:
    """Renders with the chat template of ``model``, prompts of at most ``max_tokens``."""
    tokenizer = AutoTokenizer.from_pretrained(str(model))

    def render(prompt: Prompt) -> list[int] | None:
        turns = [{"role": turn.role, "content": turn.content} for turn in prompt.messages]
        ids = tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=True)["input_ids"]
        return list(ids) if len(ids) <= max_tokens else None

    return render


def add_prompts_alone(prompts: Iterable[Prompt], render: RenderPrompt, shards: AnswerShards, tokens: int) -> None:
    """Adds prompts of the training part to ``shards``, with empty answers, until they hold ``tokens`` tokens."""
    taken = list(shards)
    done, total = {each.prompt_id for each in taken}, sum(len(each.prompt) for each in taken)
    waiting: list[Answer] = []
    for prompt in prompts:
        if total >= tokens:
            break
        if prompt.split != "train" or prompt.id in done or (ids := render(prompt)) is None:
            continue
        waiting.append(Answer(prompt.id, np.array(ids, np.int32), np.array([], np.int32)))
        total += len(ids)
        if len(waiting) == SHARD:
            shards.append(waiting)
            waiting = []
    if waiting:
        shards.append(waiting)
