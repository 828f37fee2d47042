"""Which drafts enter the next step."""

from types import SimpleNamespace
from typing import Any

import pytest
from forerun.stage.v1 import service_pb2 as pb

from services.workers.kept_drafts import KeptDrafts


def plan(*request_ids: str, finished: tuple[str, ...] = ()) -> Any:
    return SimpleNamespace(num_scheduled_tokens=dict.fromkeys(request_ids, 1), finished_req_ids=set(finished))


def drafts(**confidences: float) -> list[pb.Draft]:
    return [pb.Draft(request_id=id_, token_id=ord(id_), confidence=each) for id_, each in confidences.items()]


def test_a_draft_enters_once() -> None:
    kept = KeptDrafts()
    kept.keep(drafts(a=0.5, b=0.6), 0.0)
    assert kept.enter(plan("a"), {"a"}) == {"a": ord("a")}
    assert kept.enter(plan("a", "b"), {"a", "b"}) == {"b": ord("b")}


def test_a_verified_token_replaces_the_draft() -> None:
    kept = KeptDrafts()
    kept.keep(drafts(a=0.5), 0.0)
    assert kept.enter(plan("a"), set()) == {}
    assert kept.enter(plan("a"), {"a"}) == {}


def test_a_request_that_finished_leaves_nothing_behind_for_its_name() -> None:
    kept = KeptDrafts()
    kept.keep(drafts(a=0.5), 0.0)
    kept.enter(plan(finished=("a",)), set())
    assert kept.enter(plan("a"), {"a"}) == {}


@pytest.mark.parametrize("fraction", [0.0, 0.1, 0.25, 0.7])
def test_the_least_confident_share_is_dropped_over_many_small_steps(fraction: float) -> None:
    kept, dropped = KeptDrafts(), 0
    for _ in range(100):
        made = drafts(a=0.9, b=0.2, c=0.5)
        kept.keep(made, fraction)
        worst_first = [draft.dropped for draft in sorted(made, key=lambda draft: draft.confidence)]
        assert worst_first == sorted(worst_first, reverse=True)
        dropped += sum(worst_first)
    assert dropped == pytest.approx(300 * fraction, abs=1)
