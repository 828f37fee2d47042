"""Collects the target's answers into shards.

The batch is kept full across shards, so a shard holds the answers that ended next, in no promised order. What is
unfinished when the run is interrupted is answered again by the next one.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from services.common.training.answer_shards import Answer, AnswerShards
from services.common.training.prompt import Prompt


@dataclass(frozen=True, slots=True)
class AnswerOptions:
    """How the target answers."""

    dtype: str = "float32"
    batch: int = 64
    shard: int = 128
    """Answers in one file; at most so many finished ones are lost by an interruption."""
    max_prompt_tokens: int = 640
    """Longer prompts are left out."""
    max_answer_tokens: int = 256
    kv_cache_bytes: int = 2 << 30


class Target(Protocol):
    """The model that answers, many prompts at once."""

    def add(self, prompt: Prompt) -> bool:
        """Takes a prompt into the batch; False when it is too long and left out."""

    def step(self) -> list[Answer]:
        """Brings every answer in the batch one token further; the answers that ended by it."""


def generate_answers(
    start_target: Callable[[], Target],
    prompts: Sequence[Prompt],
    shards: AnswerShards,
    options: AnswerOptions,
    on_answer: Callable[[Answer], bool],
) -> None:
    """Answers the prompts that ``shards`` does not hold yet, in their order.

    Args:
        start_target: called when there is something to answer.
        on_answer: called for each answer as it ends; returns whether that is enough, which ends the work after the
            answers that ended so far are stored.
    """
    done = {answer.prompt_id for answer in shards}
    waiting = [prompt for prompt in prompts if prompt.id not in done]
    if not waiting:
        return
    finished: list[Answer] = []
    for answer in _answers(start_target(), iter(waiting), options.batch):
        finished.append(answer)
        enough = on_answer(answer)
        if enough or len(finished) == options.shard:
            shards.append(finished)
            finished = []
        if enough:
            return
    if finished:
        shards.append(finished)


def _answers(target: Target, waiting: Iterator[Prompt], batch: int) -> Iterator[Answer]:
    running = 0
    while True:
        while running < batch and (prompt := next(waiting, None)) is not None:
            running += target.add(prompt)
        if not running:
            return
        ended = target.step()
        running -= len(ended)
        yield from ended
