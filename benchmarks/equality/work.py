"""Six kinds of work: chat, code, maths and reading as people ask for them, structured output, and long prompts."""

import json
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

from transformers import AutoTokenizer

from benchmarks.prompts import chat_tokens, long_prompts
from benchmarks.questions import questions
from services.common.types import StructuredOutput

SHORT = ("chat", "code", "maths", "reading", "structured")
"""The first four in the order of ``questions``."""
LONG = "long"
KINDS = (*SHORT, LONG)
LONG_EVERY = 16
"""Every so many requests one is long: a sixth of them would cost hours of prefill."""

_FORMS = (
    "Describe {thing} as a JSON object.",
    "Which of the answers fits {thing}?",
    "Write an inventory line about {thing}.",
)
_THINGS = (
    "a lighthouse", "a violin", "the city of Lisbon", "an oak", "a cargo bicycle", "a sourdough loaf", "a heron",
    "a chess clock", "the river Danube", "a telescope", "a glacier", "a printing press", "a tram", "a beehive",
)  # fmt: skip
_SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 20}, "size": {"type": "integer"}},
    "required": ["name", "size"],
}
_GRAMMARS = (
    StructuredOutput("json_schema", json.dumps(_SCHEMA), disable_any_whitespace=True),
    StructuredOutput("choice", choices=("certainly", "hardly ever", "it depends on the season")),
    StructuredOutput("regex", r"[A-Z][a-z]{2,12}: [0-9]{1,3} pieces, [a-z ]{5,30}\."),
)


@dataclass(frozen=True)
class Work:
    """One request."""

    kind: str
    prompt: list[int]
    grammar: StructuredOutput | None = None


def six_kinds(model: Path, count: int) -> list[Work]:
    """``count`` requests, every ``LONG_EVERY``-th of them long (1,000 to 4,000 tokens), the others of the short kinds
    in turn; the same ones at every call, and the first ones of every longer list."""
    tokenizer = AutoTokenizer.from_pretrained(str(model))
    asked = questions()
    sources = {
        kind: cycle([Work(kind, chat_tokens(tokenizer, text)) for text in asked[first :: len(SHORT) - 1]])
        for first, kind in enumerate(SHORT[:-1])
    }
    sources[SHORT[-1]] = cycle(
        Work(SHORT[-1], chat_tokens(tokenizer, form.format(thing=thing)), grammar)
        for thing in _THINGS
        for form, grammar in zip(_FORMS, _GRAMMARS, strict=True)
    )
    sources[LONG] = cycle([Work(LONG, prompt) for prompt in long_prompts(tokenizer)])
    turns = cycle(SHORT)
    return [next(sources[LONG if index % LONG_EVERY == LONG_EVERY - 1 else next(turns)]) for index in range(count)]
