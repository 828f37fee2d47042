"""The last stage leaves out rows whose drafts it knows to be wrong, and no others."""

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import ModelRunnerOutput

from services.workers.verdicts import Verdicts


def plan(*request_ids: str, finished: tuple[str, ...] = ()) -> SchedulerOutput:
    output = SchedulerOutput.make_empty()
    output.num_scheduled_tokens = dict.fromkeys(request_ids, 1)
    output.finished_req_ids = set(finished)
    return output


def sampled(verdicts: Verdicts, **tokens: int) -> None:
    index = {id_: row for row, id_ in enumerate(tokens)}
    verdicts.sampled(ModelRunnerOutput(list(tokens), index, [[token] for token in tokens.values()]))


def test_a_wrong_draft_and_what_was_drafted_from_it_are_stale() -> None:
    verdicts = Verdicts()
    assert verdicts.stale(plan("hit", "miss"), {}) == set()
    sampled(verdicts, hit=5, miss=6)
    assert verdicts.stale(plan("hit", "miss"), {"hit": 5, "miss": 7}) == {"miss"}
    sampled(verdicts, hit=8)
    # The second draft happens to be the token that was sampled: it stands at another place.
    assert verdicts.stale(plan("hit", "miss"), {"hit": 8, "miss": 6}) == {"miss"}
    sampled(verdicts, hit=9)
    assert verdicts.stale(plan("miss"), {}) == set(), "its verified token has come"
    sampled(verdicts, miss=4)
    assert verdicts.stale(plan("miss"), {"miss": 4}) == set()


def test_a_name_that_is_used_again_starts_anew() -> None:
    verdicts = Verdicts()
    verdicts.stale(plan("r"), {})
    sampled(verdicts, r=5)
    assert verdicts.stale(plan("r"), {"r": 6}) == {"r"}
    assert verdicts.stale(plan("r", finished=("r",)), {}) == set()
    # Nothing was sampled of it yet, so nothing is known to be wrong.
    assert verdicts.stale(plan("r"), {"r": 6}) == set()
