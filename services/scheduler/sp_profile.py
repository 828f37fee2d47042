"""What was measured of each way to split a model over devices: the input of ``forerun plan``."""

from pathlib import Path
from typing import Self

from pydantic import Field, PositiveInt, model_validator

from services.common.acceptance_curve import AcceptanceCurve
from services.common.config import ConfigModel
from services.common.config_file import load_config
from services.common.latency_profile import LatencyProfile
from services.scheduler.sp_pipeline import Latency, Pipeline, StaleRows, together
from services.scheduler.sp_split import Split


class SplitProfile(ConfigModel):
    """One split: ``pp`` × ``sp`` pipeline stages of ``tp`` devices each."""

    pp: PositiveInt = 1
    """Micro-batches that take turns in the pipeline."""
    tp: PositiveInt = 1
    """Devices that share each layer."""
    sp: PositiveInt = 1
    """Steps of a sequence in flight at once, all but the oldest on drafts. 1: no speculation."""
    layers: tuple[PositiveInt, ...] = ()
    """Layers of each pipeline stage, for the reader and to tell two splits of one shape apart. Empty: not said."""
    micro_batching: bool = True
    """With pp above 1. False: all sequences form one batch, on which one stage works after the other."""
    stages: tuple[LatencyProfile, ...] = Field(min_length=1)
    """Each pipeline stage's time from step to step when it never waits, without drafting; pp x sp of them, in order."""
    draft: LatencyProfile | None = None
    """With sp above 1: what drafting adds to the stage that drafts."""
    acceptance: tuple[float, ...] | None = Field(default=None, min_length=1)
    """With sp above 1: the share (0 to 1) of right drafts, in equal shares of the drafts by confidence, least first."""
    hop_ms: float = Field(default=0.0, ge=0.0)
    """Milliseconds from a stage's end to the next one's start, and from the last one's end to the first one's."""
    kv_sequences: PositiveInt
    """Sequences whose keys and values fit into this split's memory."""
    stale_rows: StaleRows = StaleRows.SKIP_LAST
    """Whether stages leave out rows behind a miss: run, skip_last or skip_all."""

    @model_validator(mode="after")
    def _check_parts(self) -> Self:
        if len(self.stages) != self.pp * self.sp:
            raise ValueError(f"pp x sp is {self.pp * self.sp} but stages has {len(self.stages)}; profile every stage")
        if self.layers and len(self.layers) != len(self.stages):
            raise ValueError(f"layers names {len(self.layers)} stages, there are {len(self.stages)}; give each its own")
        if not self.micro_batching and (self.pp == 1 or self.sp > 1):
            raise ValueError("micro_batching false is for pp above 1 and sp 1; remove it")
        speculates = self.sp > 1
        for name in ("draft", "acceptance"):
            if (getattr(self, name) is not None) != speculates:
                fix = f"add {name}" if speculates else f"remove {name}, or raise sp"
                raise ValueError(f"sp {self.sp} {'needs' if speculates else 'has no'} {name}; {fix}")
        if self.acceptance is not None:
            AcceptanceCurve(self.acceptance)
        return self

    @property
    def shape(self) -> tuple[int, int, int]:
        """(pp, tp, sp)."""
        return self.pp, self.tp, self.sp

    @property
    def name(self) -> str:
        """For people, as in ``PP 2, TP 1, SP 1 (17+13 layers, one batch)``."""
        return str(Split(self.pp, self.tp, self.sp, self.layers, self.micro_batching))

    @property
    def profiled_rows(self) -> float:
        """The most rows that every stage was measured with."""
        return min(stage.rows[-1] for stage in self.stages)

    @property
    def drafting_stage(self) -> int | None:
        """The stage that drafts, where the first of the ``sp`` parts of the model ends."""
        return None if self.draft is None else self.pp - 1

    def curve(self) -> AcceptanceCurve:
        """Its drafts; always wrong where there are none."""
        return AcceptanceCurve(self.acceptance or (0.0,))

    def pipeline(self) -> Pipeline:
        """As the cost model takes it."""
        stages: list[Latency] = [stage.at for stage in self.stages]
        if self.draft is not None:
            stages[self.pp - 1] = together(stages[self.pp - 1], self.draft.at)
        if not self.micro_batching:
            return Pipeline((together(*stages),), hop_ms=len(stages) * self.hop_ms)
        return Pipeline(tuple(stages), self.pp, self.hop_ms, self.stale_rows)


class Profile(ConfigModel):
    """The measured splits of one model over the same devices."""

    model: str
    """The model's name."""
    devices: PositiveInt
    """Devices that each split uses."""
    origin: str = ""
    """How, when and where it was measured, for the reader."""
    splits: tuple[SplitProfile, ...] = Field(min_length=1)
    """The measured splits, in any order."""

    @model_validator(mode="after")
    def _check_splits(self) -> Self:
        names = [split.name for split in self.splits]
        for index, split in enumerate(self.splits):
            pp, tp, sp = split.shape
            if pp * tp * sp != self.devices:
                raise ValueError(f"splits.{index}: pp {pp} x tp {tp} x sp {sp} must use all {self.devices} devices")
            if split.name in names[:index]:
                raise ValueError(f"splits.{index}: {split.name} is there twice; keep one, or tell them apart by layers")
        return self


def load_profile(path: Path) -> Profile:
    """Reads a profile (JSON or YAML). ``ConfigError`` with file, line, field and fix of everything wrong in it."""
    return load_config(path, Profile)
