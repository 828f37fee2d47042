"""Writes an answer as it comes: text for people, JSON lines for programs."""

import json
import sys
from dataclasses import asdict
from typing import Protocol, TextIO

from services.client import ClientEvent, Started
from services.common.errors import RequestEndedError
from services.common.types import Delta, Finished, PromptLogprobs


class AnswerWriter(Protocol):
    """Takes the events of one request."""

    def event(self, event: ClientEvent) -> None:
        """One event, in order."""

    def failed(self, error: RequestEndedError) -> None:
        """The request ended otherwise than by the engine."""


class TextWriter:
    """Streams a single choice's text at once; several choices are written one after the other at the end."""

    def __init__(self, choices: int, output: TextIO = sys.stdout) -> None:
        self._choices = choices
        self._output = output
        self._texts = [""] * choices
        self._has_begun = False

    def event(self, event: ClientEvent) -> None:
        """Writes new text, and at the end a line break."""
        if isinstance(event, Delta):
            self._has_begun = True
            if self._choices == 1:
                self._write(event.text)
            else:
                self._texts[event.index] += event.text
        elif isinstance(event, Finished):
            self._end()

    def failed(self, error: RequestEndedError) -> None:  # noqa: ARG002  (the protocol's signature)
        """Ends the line that was begun; the command says why."""
        if self._has_begun:
            self._end()

    def _end(self) -> None:
        for index, text in enumerate(self._texts if self._choices > 1 else ()):
            self._write(f"--- {index}\n{text}\n")
        if self._choices == 1:
            self._write("\n")

    def _write(self, text: str) -> None:
        self._output.write(for_terminal(text) if self._output.isatty() else text)
        self._output.flush()


class JsonWriter:
    """One JSON object a line, with ``event``: started, delta, prompt_logprobs, finished or ended."""

    def __init__(self, output: TextIO = sys.stdout) -> None:
        self._output = output

    def event(self, event: ClientEvent) -> None:
        """The event's fields."""
        self._write({"event": _EVENT_NAMES[type(event)], **asdict(event)})

    def failed(self, error: RequestEndedError) -> None:
        """What ended the request in the engine's stead."""
        self._write(
            {
                "event": "ended",
                "outcome": error.outcome.value,
                "message": error.message,
                "field": error.field,
                "retry_after_ms": error.retry_after_ms,
            }
        )

    def _write(self, record: dict[str, object]) -> None:
        self._output.write(json.dumps(record, default=_bytes_as_text) + "\n")
        self._output.flush()


_EVENT_NAMES: dict[type[ClientEvent], str] = {
    Started: "started",
    Delta: "delta",
    PromptLogprobs: "prompt_logprobs",
    Finished: "finished",
}


def for_terminal(text: str) -> str:
    """Without control characters, by which a model's answer could drive the terminal."""
    return "".join(character for character in text if character in "\n\t" or character.isprintable())


def _bytes_as_text(value: object) -> str:
    """A token's bytes, which may hold part of a character."""
    if isinstance(value, bytes):
        return value.decode("utf-8", errors="backslashreplace")
    raise TypeError(f"{type(value).__name__} has no JSON form")
