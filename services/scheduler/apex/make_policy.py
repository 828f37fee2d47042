"""From a replica's configuration to its policy."""

from collections.abc import Sequence

from services.common.expert import Expert
from services.scheduler.apex.block import Block, Choice, Why
from services.scheduler.apex.history import RequestHistory
from services.scheduler.apex.policy import Candidate, Policy
from services.scheduler.experts_config import ExpertsConfig


class FixedPolicy:
    def __init__(self, expert: Expert, depth: int) -> None:
        self._expert, self._depth = expert, depth

    def choose(self, candidates: Sequence[Candidate]) -> list[Choice]:
        out = []
        for c in candidates:
            e = c.expert or self._expert
            d = min(self._depth if c.depth is None else c.depth, c.deepest)
            if e is Expert.PLAIN or e not in c.experts or not d:
                out.append(Choice(Expert.PLAIN, 0, Why.NOT_POSSIBLE))
            else:
                out.append(Choice(e, d, Why.PINNED))
        return out

    def observe(self, blocks: Sequence[tuple[RequestHistory, Block]]) -> None:
        pass


def make_policy(config: ExpertsConfig) -> Policy:
    e = config.experts[-1] if config.expert == "auto" else config.expert
    return FixedPolicy(e, 4 if config.depth == "auto" else config.depth)
