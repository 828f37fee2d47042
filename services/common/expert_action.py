"""What a block or a request can be pinned to: an expert and how deep it drafts."""

from typing import Self

from pydantic import ConfigDict, Field, model_validator
from pydantic.dataclasses import dataclass

from services.common.expert import DEPTHS, Expert


@dataclass(frozen=True, slots=True, config=ConfigDict(extra="forbid"))
class Action:
    """An expert and its draft tokens of a block."""

    expert: Expert
    depth: int = Field(ge=0, le=DEPTHS[-1])
    """0 exactly with ``Expert.PLAIN``."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.depth == 0) != (self.expert is Expert.PLAIN):
            raise ValueError("depth must be 0 for plain, and more for everybody else")
        return self

    @property
    def name(self) -> str:
        """As in ``ngram-8``."""
        return f"{self.expert.value}-{self.depth}" if self.depth else self.expert.value


PLAIN = Action(Expert.PLAIN, 0)
