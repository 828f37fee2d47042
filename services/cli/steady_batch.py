"""Requests that decode at once for as long as needed: the load under which stages are measured."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager

from services.cli.errors import EXIT_FAILED, CliError
from services.client import ForerunClient
from services.client.convert import Prompt
from services.common.errors import RequestEndedError
from services.common.types import Delta, SamplingOptions

FIRST_TOKENS_TIMEOUT_S = 300.0
SETTLE_S = 0.3
"""After the last prefill: the steps that were planned beside it have passed."""

_SAMPLING = SamplingOptions(temperature=0.0, ignore_eos=True)


class TokenCount:
    """The tokens of a batch that have arrived here."""

    def __init__(self, requests: int) -> None:
        self.tokens = 0
        self._to_start = requests
        self.all_decode = asyncio.Event()

    def note(self, tokens: int, *, is_first: bool) -> None:
        """Counts what one message brought to one request."""
        self.tokens += tokens
        self._to_start -= is_first
        if not self._to_start:
            self.all_decode.set()


@asynccontextmanager
async def steady_batch(client: ForerunClient, prompts: Sequence[Prompt]) -> AsyncIterator[TokenCount]:
    """Open while all requests decode, one for each prompt; they are cancelled when it closes.

    Raises:
        CliError: a request ended, by an error or because its answer filled the model's context.
    """
    count = TokenCount(len(prompts))
    try:
        async with asyncio.TaskGroup() as group:
            requests = [group.create_task(_decode(client, prompt, count)) for prompt in prompts]
            async with asyncio.timeout(FIRST_TOKENS_TIMEOUT_S):
                await count.all_decode.wait()
            await asyncio.sleep(SETTLE_S)
            yield count
            for request in requests:
                request.cancel()
    except* (CliError, RequestEndedError, TimeoutError) as ended:
        raise _explained(ended.exceptions[0]) from ended


async def _decode(client: ForerunClient, prompt: Prompt, count: TokenCount) -> None:
    is_first = True
    async with aclosing(client.generate(prompt, _SAMPLING)) as events:
        async for event in events:
            if isinstance(event, Delta) and event.token_ids:
                count.note(len(event.token_ids), is_first=is_first)
                is_first = False
    raise CliError("an answer filled the model's context before its stages were measured; raise max_model_len")


def _explained(error: BaseException) -> CliError:
    if isinstance(error, CliError):
        return error
    if isinstance(error, RequestEndedError):
        return CliError(
            f"a request ended while the stages were measured: {error.outcome}: {error.message}", EXIT_FAILED
        )
    return CliError(f"a batch did not start to decode within {FIRST_TOKENS_TIMEOUT_S:g} s", EXIT_FAILED)
