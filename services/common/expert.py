"""The speculation mechanisms that a request can be served with, and how deep they draft (design section 6)."""

from enum import StrEnum


class Expert(StrEnum):
    """Who drafts. The values are the words of configuration, metrics, spans and the wire's comments."""

    PLAIN = "plain"
    """Nobody: one token a step."""
    NGRAM = "ngram"
    """What followed the same tokens earlier in the request's own text."""
    EAGLE3 = "eagle3"
    """A small head on the target's hidden states."""
    DRAFT_MODEL = "draft_model"
    """A smaller model of the same vocabulary."""

    @property
    def is_neural(self) -> bool:
        """Runs on the stage's device; a replica has at most one of these."""
        return self in (Expert.EAGLE3, Expert.DRAFT_MODEL)


DEPTHS = (0, 1, 2, 3, 4, 6, 8, 12, 16)
"""Candidate numbers of draft tokens of a block; 0 is a plain step."""
