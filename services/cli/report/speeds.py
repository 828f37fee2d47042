"""Speed and waste of every setting in every workload, from a grid's requests. Pure."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from services.common.expert import Expert
from services.router.apex.training.request_table import RequestRow

ORACLE = "oracle"
"""Every request with its own fastest setting, known afterwards."""


@dataclass(frozen=True, slots=True)
class Speed:
    """One setting in one workload."""

    tokens_per_s: float
    speedup: float
    """Over plain decoding of the same prompts."""
    waste: float
    """Share of the verified drafts that were rejected; 0 where nothing was drafted."""
    requests: int


def speeds(rows: Sequence[RequestRow]) -> dict[str, dict[str, Speed]]:
    """By workload and setting (``ngram-8``), with ``ORACLE``; workloads without plain requests are left out.

    Of prompts that were asked more than once with one setting, the first request counts. Seconds are those behind the
    first token.
    """
    of_prompts: dict[str, dict[str, dict[str, RequestRow]]] = defaultdict(lambda: defaultdict(dict))
    for row in rows:
        if row.answer_tokens > 1 and row.seconds > row.first_token_s:
            of_prompts[row.workload][row.prompt_id].setdefault(row.action.name, row)
    found = {}
    for workload, by_prompt in sorted(of_prompts.items()):
        comparable = [of_prompt for of_prompt in by_prompt.values() if Expert.PLAIN.value in of_prompt]
        if comparable:
            found[workload] = _of_workload(comparable)
    return found


def _of_workload(by_prompt: Sequence[Mapping[str, RequestRow]]) -> dict[str, Speed]:
    plain = Expert.PLAIN.value
    names = sorted({name for of_prompt in by_prompt for name in of_prompt}, key=_order)
    chosen = {name: [each for each in by_prompt if name in each] for name in names}
    found = {
        name: _speed([each[name] for each in some], [each[plain] for each in some]) for name, some in chosen.items()
    }
    best = [min(each.values(), key=lambda row: _seconds(row) / (row.answer_tokens - 1)) for each in by_prompt]
    return {**found, ORACLE: _speed(best, [each[plain] for each in by_prompt])}


def _order(name: str) -> tuple[int, int]:
    expert, _, depth = name.partition("-")
    return [each.value for each in Expert].index(expert), int(depth or 0)


def _speed(rows: Sequence[RequestRow], plain: Sequence[RequestRow]) -> Speed:
    pace, drafted = _pace(rows), sum(row.drafted for row in rows)
    wasted = drafted - sum(row.accepted for row in rows)
    return Speed(1 / pace, _pace(plain) / pace, wasted / drafted if drafted else 0.0, len(rows))


def _pace(rows: Iterable[RequestRow]) -> float:
    """Seconds a token."""
    rows = list(rows)
    return sum(map(_seconds, rows)) / sum(row.answer_tokens - 1 for row in rows)


def _seconds(row: RequestRow) -> float:
    return row.seconds - row.first_token_s
