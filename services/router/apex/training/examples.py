"""What a grid's requests say of each prompt: how fast each expert and depth answered it, and what they wasted."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from services.common.errors import ConfigError
from services.common.expert import Expert
from services.common.expert_action import PLAIN, Action
from services.common.training.prompt import stable_hash
from services.router.apex.route_net import OUTCOMES
from services.router.apex.training.request_table import RequestRow

VALIDATION_PERCENT: Final = 15
"""Of the prompts, where no row is of the validation part."""

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class RouteExamples:
    """Of some prompts.

    Attributes:
        prompt_ids: in order.
        outcomes: log of the speedup over plain, and rejected drafts for each token, [prompts, actions, 2].
        known: which of them were recorded, [prompts, actions]; the others are 0.
    """

    prompt_ids: Sequence[str]
    outcomes: Floats
    known: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.prompt_ids)

    @classmethod
    def of(cls, rows: Sequence[RequestRow], actions: Sequence[Action]) -> "RouteExamples":
        """Prompts that were answered plainly and in some other way. Speeds are of decoding: the first token is left
        out, since no expert changes how long a prompt takes."""
        by_prompt: dict[str, dict[Action, list[RequestRow]]] = defaultdict(lambda: defaultdict(list))
        for row in rows:
            if row.answer_tokens > 1 and row.seconds > row.first_token_s:
                by_prompt[row.prompt_id][row.action].append(row)
        comparable = {prompt: known for prompt, known in by_prompt.items() if PLAIN in known and len(known) > 1}
        outcomes = np.zeros((len(comparable), len(actions), len(OUTCOMES)), np.float32)
        known = np.zeros(outcomes.shape[:2], bool)
        for index, of_prompt in enumerate(comparable.values()):
            plain = _speed(of_prompt[PLAIN])
            for column, action in enumerate(actions):
                if of_action := of_prompt.get(action):
                    known[index, column] = True
                    outcomes[index, column] = np.log(_speed(of_action) / plain), _wasted(of_action)
        return cls(list(comparable), outcomes, known)


def actions_of(rows: Sequence[RequestRow]) -> tuple[Action, ...]:
    """All that were recorded, plain first.

    Raises:
        ConfigError: nothing was recorded plainly, or nothing but that.
    """
    actions = sorted({row.action for row in rows}, key=lambda each: (list(Expert).index(each.expert), each.depth))
    if actions[:1] != [PLAIN] or len(actions) < 2:
        raise ConfigError("the grid must hold plain requests and others; record it with `forerun bench grid`")
    return tuple(actions)


def split(rows: Sequence[RequestRow]) -> tuple[list[RequestRow], list[RequestRow], list[RequestRow]]:
    """To learn from, to validate on, to report on; by prompt. Without a test part the report is on validation.

    Raises:
        ConfigError: too few prompts for both of the first two.
    """
    test = [row for row in rows if row.split == "test"]
    validation = [row for row in rows if row.split == "validation"]
    train = [row for row in rows if row.split == "train"]
    if not validation:
        validates = {row.prompt_id for row in train if _is_drawn(row.prompt_id)}
        validation = [row for row in train if row.prompt_id in validates]
        train = [row for row in train if row.prompt_id not in validates]
    if not train or not validation:
        raise ConfigError("the grid holds too few prompts to learn from and to validate on; record more")
    return train, validation, test or validation


def features_of(examples: RouteExamples, features: Mapping[str, Floats]) -> Floats:
    """[prompts, features]; ``features``: by prompt id."""
    return np.stack([features[each] for each in examples.prompt_ids])


def _is_drawn(prompt_id: str) -> bool:
    return stable_hash(f"validation {prompt_id}") % 100 < VALIDATION_PERCENT


def _speed(rows: Sequence[RequestRow]) -> float:
    return sum(row.answer_tokens - 1 for row in rows) / sum(row.seconds - row.first_token_s for row in rows)


def _wasted(rows: Sequence[RequestRow]) -> float:
    return sum(row.drafted - row.accepted for row in rows) / sum(row.answer_tokens for row in rows)
