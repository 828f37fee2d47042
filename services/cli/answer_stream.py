"""Sends one prompt and hands its answer to a writer; used by ``forerun generate`` and ``forerun up --prompt``."""

import time
from contextlib import aclosing
from dataclasses import dataclass, field

from services.cli.answer_output import AnswerWriter
from services.cli.connection import Connection
from services.client import Chat, ForerunClient, Started
from services.common.errors import RequestEndedError
from services.common.types import Delta, ExpertChoice, Finished, SamplingOptions, Usage


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked."""

    prompt: str | tuple[int, ...] | Chat
    sampling: SamplingOptions = field(default_factory=SamplingOptions)
    model: str = ""
    request_id: str = ""
    priority: int = 0
    tenant: str = ""
    timeout_s: float | None = None


@dataclass(slots=True)
class AnswerSummary:
    """What became of it."""

    outcome: str = ""
    trace_id: str = ""
    replica_id: str = ""
    expert_choice: ExpertChoice | None = None
    usage: Usage = field(default_factory=Usage)
    first_text_s: float | None = None
    """Until the first text arrived here."""
    total_s: float = 0.0

    def __str__(self) -> str:
        first = "" if self.first_text_s is None else f", first after {self.first_text_s:.2f} s"
        drafts = ""
        if (speculation := self.usage.speculation) is not None and speculation.draft_tokens:
            drafts = f", {speculation.accepted_tokens} of {speculation.draft_tokens} drafts accepted"
        return f"{self.outcome}: {self.usage.output_tokens} tokens in {self.total_s:.2f} s{first}{drafts}"


async def stream_answer(connection: Connection, question: Question, writer: AnswerWriter) -> AnswerSummary:
    """Returns when the engine ended the request.

    Raises:
        RequestEndedError: it ended otherwise; the writer was told.
        ConfigError: the connection's certificates are unusable, or plain text is not allowed there.
    """
    summary, started_at = AnswerSummary(), time.monotonic()
    async with ForerunClient(connection.address, connection.tls, connection.api_key) as client:
        events = client.generate(
            question.prompt,
            question.sampling,
            model=question.model,
            request_id=question.request_id,
            priority=question.priority,
            tenant=question.tenant,
            timeout_s=question.timeout_s,
        )
        async with aclosing(events):
            try:
                async for event in events:
                    writer.event(event)
                    if isinstance(event, Started):
                        summary.trace_id, summary.replica_id = event.trace_id, event.replica_id
                        summary.expert_choice = event.expert_choice
                    elif isinstance(event, Delta) and event.text and summary.first_text_s is None:
                        summary.first_text_s = time.monotonic() - started_at
                    elif isinstance(event, Finished):
                        summary.outcome, summary.usage = event.outcome.value, event.usage
            except RequestEndedError as error:
                writer.failed(error)
                raise
    summary.total_s = time.monotonic() - started_at
    return summary
