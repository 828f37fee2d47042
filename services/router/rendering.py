"""How a prompt becomes token ids; implemented over vLLM's renderer, which needs the model's files but no weights."""

from typing import NoReturn, Protocol

from services.common.errors import invalid
from services.router.request import ChatPrompt, TextPrompt


class PromptRenderer(Protocol):
    """Tokenizer and chat template of one model. Neither method blocks the event loop on long prompts."""

    async def tokenize(self, prompt: TextPrompt) -> tuple[int, ...]:
        """Token ids of a text, special tokens added as the tokenizer does.

        Raises ``RequestEndedError`` (invalid) when the text cannot fit the context.
        """
        ...

    async def render_chat(self, prompt: ChatPrompt) -> tuple[int, ...]:
        """Token ids of a conversation, with the opening of the assistant's turn.

        Raises ``RequestEndedError`` (invalid) when the template refuses the conversation or the context is too short.
        """
        ...


class TokensOnly:
    """The ``PromptRenderer`` of a router that is configured without a tokenizer."""

    async def tokenize(self, prompt: TextPrompt) -> NoReturn:  # noqa: ARG002  (the contract's)
        """Refuses."""
        raise invalid("text", "this router has no tokenizer; send token ids")

    async def render_chat(self, prompt: ChatPrompt) -> NoReturn:  # noqa: ARG002
        """Refuses."""
        raise invalid("chat", "this router has no tokenizer; send token ids")
