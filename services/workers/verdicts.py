"""The last stage's own verdicts: which drafted rows it need not run.

It sampled the token that a draft was to foresee, and is told the draft, one step before the scheduler can say anything
of it. Of a draft that differs neither its row nor what was drafted from it will be used.
"""

from collections.abc import Iterable, Mapping

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import ModelRunnerOutput


class Verdicts:
    """Compares each draft with the token that was sampled in its place, as the scheduler will."""

    def __init__(self) -> None:
        self._newest: dict[str, int] = {}
        """By request, the token that was sampled last."""
        self._stale: set[str] = set()
        """Requests whose rows are behind a wrong draft."""

    @property
    def held(self) -> int:
        """Requests of which something is remembered."""
        return len(self._newest.keys() | self._stale)

    def stale(self, plan: SchedulerOutput, drafts: Mapping[str, int]) -> set[str]:
        """The requests of a step whose rows are not worth running.

        Args:
            plan: the step, without the requests that the first stage left out.
            drafts: by request, those of its inputs that are drafts; every other input is verified.
        """
        self._forget(plan.finished_req_ids)
        for request_id in plan.num_scheduled_tokens:
            draft = drafts.get(request_id)
            if draft is None:
                self._stale.discard(request_id)
            elif self._newest.get(request_id, draft) != draft:
                self._stale.add(request_id)
        return self._stale.intersection(plan.num_scheduled_tokens)

    def sampled(self, output: ModelRunnerOutput) -> None:
        """A step's tokens; a request whose prompt is not in whole has none."""
        for request_id, tokens in zip(output.req_ids, output.sampled_token_ids, strict=True):
            if tokens:
                self._newest[request_id] = tokens[-1]

    def _forget(self, request_ids: Iterable[str]) -> None:
        for request_id in request_ids:
            self._newest.pop(request_id, None)
            self._stale.discard(request_id)
