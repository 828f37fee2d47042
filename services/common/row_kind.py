"""What one request's part of a step was, as a letter: so a whole answer's steps are one short span attribute."""

from enum import StrEnum


class RowKind(StrEnum):
    """A request's row in one step, judged by what became of it."""

    PREFILL = "p"
    """Tokens of the prompt, or of the text so far after a preemption."""
    VERIFIED = "v"
    """A token that had been sampled."""
    ACCEPTED = "a"
    """A draft that the verifier kept."""
    MISSED = "m"
    """A draft that was wrong."""
    STALE = "s"
    """Younger than a miss, or than a preemption: ran in vain."""
    UNJUDGED = "u"
    """A draft that ran ahead when the request ended."""
    LEFT_OUT = "l"
    """Planned, but there was no draft to run; took no time."""
    ABSENT = "."
    """The request had no row in this step."""
