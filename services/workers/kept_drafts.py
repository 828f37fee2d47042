"""The first stage's memory between a step and the next: which drafts run ahead, and which were dropped."""

from forerun.stage.v1 import service_pb2 as pb
from vllm.v1.core.sched.output import SchedulerOutput


class KeptDrafts:
    """The draft that follows each request's newest token, unless it was dropped or has entered a step."""

    def __init__(self) -> None:
        self._tokens: dict[str, int] = {}
        self._owed = 0.0

    @property
    def held(self) -> int:
        """Drafts that wait to enter."""
        return len(self._tokens)

    def enter(self, plan: SchedulerOutput, drafted: set[str]) -> dict[str, int]:
        """The drafts that become inputs of a step, by request; each can enter once.

        Args:
            plan: the step.
            drafted: its requests that have no verified token for it; one whose draft was dropped gets none here
                either, until it comes back with a verified token.
        """
        for request_id in plan.finished_req_ids:
            self._tokens.pop(request_id, None)
        entering = {request_id: self._tokens.pop(request_id, None) for request_id in plan.num_scheduled_tokens}
        return {id_: token for id_, token in entering.items() if token is not None and id_ in drafted}

    def keep(self, drafts: list[pb.Draft], drop_fraction: float) -> None:
        """Marks the least confident share of a step's drafts as dropped and keeps the others.

        What does not make a whole draft is carried over to the next step.
        """
        self._owed += drop_fraction * len(drafts)
        count, self._owed = int(self._owed), self._owed % 1
        for draft in sorted(drafts, key=lambda draft: draft.confidence)[:count]:
            draft.dropped = True
        self._tokens.update((draft.request_id, draft.token_id) for draft in drafts if not draft.dropped)
