"""The policy of a replica that is told which expert drafts, and how many tokens."""

from collections.abc import Mapping, Sequence

from services.common.expert import Expert
from services.scheduler.apex.block import Block, Choice, Why
from services.scheduler.apex.history import RequestHistory
from services.scheduler.apex.options import Options, Pins
from services.scheduler.apex.policy import Candidate


class FixedPolicy:
    """One expert and one depth, plain where that expert cannot draft; a request's own pins come first."""

    def __init__(self, expert: Expert, depth: int) -> None:
        """``depth``: draft tokens; fewer where fewer fit or are found."""
        self._expert = expert
        self._depth = depth

    @property
    def odds_factors(self) -> Mapping[Expert, float]:
        """See ``Policy``."""
        return {}

    def choose(self, candidates: Sequence[Candidate]) -> list[Choice]:
        """See ``Policy``."""
        return [self._choice(each) for each in candidates]

    def observe(self, blocks: Sequence[tuple[RequestHistory, Block]]) -> None:
        """Nothing to learn."""

    def _choice(self, candidate: Candidate) -> Choice:
        neural = next((each for each in candidate.experts if each.is_neural), None)
        options = Options.of([candidate], neural, Pins(self._expert, self._depth))
        # Both are pinned, so one column is left.
        column = int(options.allowed[0].argmax())
        depth = int(options.drafted[0, column])
        if not depth:
            return Choice(Expert.PLAIN, 0, Why.PINNED if options.wants_plain[0] else Why.NOT_POSSIBLE)
        expert = options.expert_of(column)
        match = candidate.ngram_match if expert is Expert.NGRAM else 0
        return Choice(expert, depth, Why.PINNED, ngram_match=match)
