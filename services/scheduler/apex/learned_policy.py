"""The policy with a depth model: its hazards, corrected by what the replica sees, and the best for the whole step.

Either the model's hazards and the replica's own step costs say which blocks bring the most tokens per second, or the
model's utility head decides request by request, as in papers/apex section 4.4. Where the model gives a number that is
not finite, the whole step is chosen by averages, which are kept up beside it.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import structlog
from numpy.typing import NDArray

from services.common.expert import Expert
from services.scheduler.apex.averages_policy import AveragesPolicy
from services.scheduler.apex.block import Block, Choice, Why
from services.scheduler.apex.calibration import Calibration
from services.scheduler.apex.chooser import Chooser, Outlook
from services.scheduler.apex.depth_net import DepthNet
from services.scheduler.apex.history import CANDIDATE_AT, ROW_OF, RequestHistory
from services.scheduler.apex.options import (
    COLUMNS,
    NEURAL_COLUMNS,
    NGRAM_COLUMNS,
    PLAIN_COLUMN,
    Options,
    Pins,
)
from services.scheduler.apex.policy import Candidate
from services.scheduler.apex.survival import hazards_of

_log = structlog.get_logger(__name__)

DepthScore = Literal["rate", "utility"]


class LearnedPolicy:
    """Fails open: nothing that the model does keeps a step from being chosen."""

    def __init__(
        self, net: DepthNet, averages: AveragesPolicy, chooser: Chooser, neural: Expert | None, pins: Pins,
        score: DepthScore = "rate",
    ) -> None:  # fmt: skip
        """Args beyond those of ``AveragesPolicy``:

        averages: shares ``chooser`` and tells it of every step.
        score: rate, by tokens per second; utility, by that head.
        """
        self._net = net
        self._averages = averages
        self._chooser = chooser
        self._pins = pins
        self._experts = (Expert.NGRAM, neural)
        drafting = [Expert.NGRAM, neural or Expert.EAGLE3]
        self._rows = [ROW_OF[each] for each in drafting]
        self._all_rows = [ROW_OF[Expert.PLAIN], *self._rows]
        self._by_utility = score == "utility"
        self._calibration = Calibration(len(drafting))
        self.failures = 0
        """Steps that were chosen by averages because the model gave numbers that were not finite."""

    @property
    def odds_factors(self) -> Mapping[Expert, float]:
        """By expert, what the model's odds of rejection are multiplied by; 1: it is right on this replica."""
        factors = np.exp(self._calibration.log_factor).tolist()
        return {expert: each for expert, each in zip(self._experts, factors, strict=True) if expert is not None}

    def choose(self, candidates: Sequence[Candidate]) -> list[Choice]:
        """See ``Policy``."""
        if not candidates:
            return []
        options = Options.of(candidates, self._experts[1], self._pins)
        outlook = self._outlook(options)
        if outlook is None:
            self._failed()
            outlook = self._averages.outlook(options)
        return self._chooser.choose(options, outlook)

    def observe(self, blocks: Sequence[tuple[RequestHistory, Block]]) -> None:
        """See ``Policy``."""
        self._averages.observe(blocks)
        step = [block for _, block in blocks]
        for index, expert in enumerate(self._experts):
            known = [
                (each.choice.hazards, each.accepted, each.drafted)
                for each in step
                if each.choice.expert is expert
                and each.drafted
                and each.choice.hazards is not None
                # Those of averages say nothing of the model.
                and each.choice.why is not Why.AVERAGES
            ]
            if known:
                hazards, accepted, drafted = zip(*known, strict=True)
                self._calibration.observe(index, np.stack(hazards), np.array(accepted), np.array(drafted))

    def _outlook(self, options: Options) -> Outlook | None:
        """None where the model fails."""
        rows = self._all_rows if self._by_utility else self._rows
        features = _features(options, rows)
        with np.errstate(all="ignore"):
            encoded = self._net.encode(features, np.array(rows))
            logits = self._net.hazard_logits(encoded[:, -len(self._rows) :])
            hazards = hazards_of(logits + self._calibration.log_factor.astype(np.float32)[:, None])
            utilities = self._utilities(encoded) if self._by_utility else None
        numbers = float(hazards.sum()) + (0.0 if utilities is None else float(utilities.sum()))
        if not np.isfinite(numbers):
            return None
        return Outlook(hazards, Why.LEARNED, utilities)

    def _utilities(self, encoded: NDArray[np.float32]) -> NDArray[np.float32]:
        """By column; of a depth that is cut, as if it were not."""
        utilities = np.empty((len(encoded), COLUMNS), np.float32)
        utilities[:, PLAIN_COLUMN] = self._net.outcomes(encoded[:, :1], slice(0, 1)).utility[:, 0, 0]
        drafting = self._net.outcomes(encoded[:, 1:], slice(1, None)).utility
        for side, columns in enumerate((NGRAM_COLUMNS, NEURAL_COLUMNS)):
            utilities[:, columns] = drafting[:, side]
        return utilities

    def _failed(self) -> None:
        if not self.failures:
            _log.warning("the depth model gives numbers that are not finite, averages choose instead")
        self.failures += 1


def _features(options: Options, rows: Sequence[int]) -> NDArray[np.float32]:
    """[requests, experts, features]."""
    states = np.concatenate([each.history.states for each in options.candidates])
    features = states.reshape(len(options.candidates), -1, states.shape[1])[:, rows]
    features[:, :, CANDIDATE_AT] = options.found[:, None]
    return features
