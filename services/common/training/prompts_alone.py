"""Prompts without answers, to train on: there too the target knows what it expects next, and reading is cheap."""

from collections.abc import Iterable

import numpy as np

from services.common.training.answer_shards import Answer, AnswerShards
from services.common.training.chat_rendering import RenderPrompt
from services.common.training.prompt import Prompt

SHARD = 200


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
