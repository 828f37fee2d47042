"""The policy without a depth model: what acceptance and steps were measured to be, and the best for the whole step."""

from collections.abc import Mapping, Sequence

import numpy as np

from services.common.expert import Expert
from services.scheduler.apex.arms import arm_of
from services.scheduler.apex.averages import Averages
from services.scheduler.apex.block import Block, Choice, Why
from services.scheduler.apex.chooser import Chooser, Outlook
from services.scheduler.apex.history import RequestHistory
from services.scheduler.apex.options import Options, Pins
from services.scheduler.apex.policy import Candidate


class AveragesPolicy:
    """Hazards of ``averages``, costs of ``step_cost``, choices of ``best_depths``, trials of ``exploration``."""

    def __init__(self, neural: Expert | None, chooser: Chooser, pins: Pins) -> None:
        """``neural``: the replica's drafter; None: it has none. ``pins``: for requests that ask for nothing."""
        self._neural = neural
        self._chooser = chooser
        self._pins = pins
        self._averages = Averages()

    @property
    def odds_factors(self) -> Mapping[Expert, float]:
        """See ``Policy``."""
        return {}

    def choose(self, candidates: Sequence[Candidate]) -> list[Choice]:
        """See ``Policy``."""
        if not candidates:
            return []
        options = Options.of(candidates, self._neural, self._pins)
        return self._chooser.choose(options, self.outlook(options))

    def outlook(self, options: Options) -> Outlook:
        """What is expected of a step's requests."""
        histories = [each.history for each in options.candidates]
        return Outlook(self._averages.hazards_for(histories, options.arms()), Why.AVERAGES)

    def observe(self, blocks: Sequence[tuple[RequestHistory, Block]]) -> None:
        """See ``Policy``."""
        step = [block for _, block in blocks]
        if step:
            self._chooser.observe(step)
            self._count(step)

    def _count(self, step: Sequence[Block]) -> None:
        drafted = [
            (arm_of(each.choice.expert, each.choice.ngram_match), each.accepted, each.drafted)
            for each in step
            if each.drafted
        ]
        arms, accepted, tokens = np.array(drafted, np.int64).reshape(len(drafted), 3).T
        self._averages.observe(arms, accepted, tokens)
