"""What is known of one request before its next block: the causal state of papers/apex section 4.1."""

from collections.abc import Sequence

from services.scheduler.apex.block import Block


class RequestHistory:
    """Told of the prompt, then of every block with the tokens that it brought, in order."""

    def __init__(self, prompt: Sequence[int], max_tokens: int) -> None:
        """``max_tokens``: of the answer."""
        self.blocks = 0
        self.max_tokens = max_tokens
        self.answer_tokens = 0

    def extend(self, tokens: Sequence[int]) -> None:
        """Tokens came outside of a block: the first one, or one after a preemption."""
        self.answer_tokens += len(tokens)

    def observe(self, block: Block, tokens: Sequence[int]) -> None:
        """A block ended; ``tokens`` are what it emitted."""
        self.blocks += 1
        self.answer_tokens += len(tokens)
