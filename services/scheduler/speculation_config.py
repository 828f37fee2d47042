"""How a replica of several stages speculates (SP)."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from services.common.config import ConfigModel


class SpeculationConfig(ConfigModel):
    """Speculative parallelism: the first stage drafts the next token and runs ahead while later stages verify."""

    draft_adapter: Path
    """Folder of the adapter that the first stage drafts with, as ``forerun train adapter`` writes it. The first stage
    has the layers up to its exit, or more of them where ``layer_partition`` says so."""
    context_lookup: bool = True
    """Whether the first stage also looks up in a greedy request's own text what followed its newest tokens before, and
    drafts that where it is likelier to be right than the adapter."""
    mode: Literal["auto", "always"] = "auto"
    """auto: speculate where the replica's own measurements say that it pays. always: whatever they say."""
    drop_fraction: Literal["auto"] | Annotated[float, Field(ge=0.0, lt=1.0)] = "auto"
    """The least confident fraction of each step's drafts that is dropped; a request whose draft is dropped waits for
    its verified token instead of running ahead. auto: the one that promises most by the replica's own measurements."""
