"""Which experts a replica of one stage has, and how they are chosen (APEX)."""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from services.common.config import ConfigModel
from services.common.expert import DEPTHS, Expert
from services.common.expert_profiles import ProfileName


class NeuralDrafterConfig(ConfigModel):
    """The one drafter with weights."""

    kind: Literal[Expert.EAGLE3, Expert.DRAFT_MODEL]
    """eagle3: a head on the target's hidden states. draft_model: a smaller model of the same vocabulary."""
    model: str
    """Its folder or Hugging Face id, in the format that vLLM loads; ``forerun train eagle3`` and ``forerun train
    draft`` make one."""


class NgramConfig(ConfigModel):
    """Drafting from the request's own text."""

    shortest_match: int = Field(default=2, ge=1)
    """Tokens that must have stood there before."""
    longest_match: int = Field(default=5, ge=1)
    """Longer matches are not looked for."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.longest_match < self.shortest_match:
            raise ValueError(
                f"longest_match: {self.longest_match} is less than shortest_match {self.shortest_match}; raise it"
            )
        return self


class ExpertsConfig(ConfigModel):
    """Speculation in blocks: an expert drafts some tokens, and the next step verifies them all at once."""

    drafter: NeuralDrafterConfig | None = None
    """Null: no neural one."""
    ngram: NgramConfig | None = NgramConfig()
    """Null: nothing is looked up."""
    expert: Expert | Literal["auto"] = "auto"
    """Of requests that do not ask for one. auto: chosen block by block."""
    depth: Annotated[int, Field(ge=0)] | Literal["auto"] = "auto"
    """Draft tokens of a block, for requests that do not ask for a number. auto: chosen block by block."""
    depths: tuple[Annotated[int, Field(ge=0, le=DEPTHS[-1])], ...] = DEPTHS
    """Among which a depth is chosen; 0 always is, and a request may ask for others."""
    deepest: int = Field(default=DEPTHS[-1], ge=1, le=DEPTHS[-1])
    """Most draft tokens of a block, whoever asks."""

    depth_model: Path | None = None
    """Folder that ``forerun train depth`` wrote. Null, or a model that cannot be used: what is chosen block by block
    goes by the acceptance and the step times that the replica has measured."""
    depth_score: Literal["rate", "utility"] = "rate"
    """What the depth model's choice goes by. rate: the tokens per second of the whole batch, by its predicted
    acceptance and the replica's own step times. utility: its predicted utility, request by request."""
    profile: ProfileName = "speed"
    """How much wasted draft tokens count beside tokens per second: speed, not at all; balanced; efficient."""
    explore: float = Field(default=0.02, ge=0.0, le=0.5)
    """Share of the replica's time that trying other than the best choices may cost, so that it notices when they
    become better. 0: they are never tried."""
    record: Path | None = None
    """Folder that every verified block is recorded into, as Parquet for ``forerun train depth``. Null: none is."""

    @property
    def experts(self) -> tuple[Expert, ...]:
        """All that the replica has; plain first."""
        ngram = () if self.ngram is None else (Expert.NGRAM,)
        neural = () if self.drafter is None else (Expert(self.drafter.kind),)
        return (Expert.PLAIN, *ngram, *neural)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.drafter is None and self.ngram is None:
            raise ValueError("experts: has neither a drafter nor ngram; name one, or remove experts")
        if self.expert != "auto" and self.expert not in self.experts:
            raise ValueError(f"expert: {self.expert} is not among {', '.join(self.experts)}; configure it, or set auto")
        if odd := sorted({*self.depths} - {*DEPTHS}):
            raise ValueError(f"depths: {odd[0]} is not among {', '.join(map(str, DEPTHS))}; leave it out")
        if not any(0 < depth <= self.deepest for depth in self.depths):
            raise ValueError(f"depths: has none from 1 to deepest {self.deepest}; name one, or set expert to plain")
        if self.depth != "auto" and self.depth > self.deepest:
            raise ValueError(f"depth: {self.depth} is more than deepest {self.deepest}; lower it, or raise deepest")
        return self
