"""Prompts as the target reads them: token ids by its own chat template."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from transformers import AutoTokenizer

from services.common.training.prompt import Message


class Conversation(Protocol):
    """Turns that the target shall answer."""

    @property
    def messages(self) -> Sequence[Message]:
        """In order."""


RenderPrompt = Callable[[Conversation], list[int] | None]
"""The token ids of a chat prompt; None when it is too long and left out."""


def prompt_renderer(model: Path, max_tokens: int) -> RenderPrompt:
    """Renders with the chat template of ``model``, prompts of at most ``max_tokens``."""
    tokenizer = AutoTokenizer.from_pretrained(str(model))

    def render(prompt: Conversation) -> list[int] | None:
        turns = [{"role": turn.role, "content": turn.content} for turn in prompt.messages]
        ids = tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=True)["input_ids"]
        return list(ids) if len(ids) <= max_tokens else None

    return render
