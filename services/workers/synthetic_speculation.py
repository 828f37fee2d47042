"""Speculative parallelism over synthetic devices: drafts that are right as often as was recorded."""

import time
from collections.abc import Iterable, Sequence

import torch
from forerun.stage.v1 import service_pb2 as pb
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import ModelRunnerOutput

from services.common.acceptance_curve import AcceptanceCurve
from services.common.errors import ConfigError
from services.workers.kept_drafts import KeptDrafts
from services.workers.kv_books import planned_rows
from services.workers.place import StagePlace
from services.workers.synthetic_config import SyntheticConfig
from services.workers.synthetic_device import SyntheticDevice
from services.workers.synthetic_text import RecordedDrafts
from services.workers.verdicts import Verdicts


class SyntheticSpeculation:
    """A ``StageSpeculation``: the first stage drafts; others leave out what it did, the last one stale rows too."""

    def __init__(self, config: SyntheticConfig, device: SyntheticDevice, vocabulary: int, place: StagePlace) -> None:
        """Raises ``ConfigError`` when no acceptance was recorded."""
        if not config.acceptance:
            raise ConfigError(
                "synthetic.acceptance: missing, and the replica speculates; give the share of right drafts"
            )
        self._drafts = RecordedDrafts(AcceptanceCurve(config.acceptance), config.seed, vocabulary)
        self._device = device
        self._is_first = place.is_first
        self._kept = KeptDrafts()
        self._verdicts = Verdicts() if place.is_last else None
        self._rows = pb.SpeculatedRows()
        self._sent_tokens: dict[str, int] = {}
        self._states: Sequence[int] = ()

    def before_forward(
        self, plan: SchedulerOutput, speculation: pb.Speculation, received: pb.SpeculatedRows | None
    ) -> None:
        """Enters the drafts; takes requests without one out of ``num_scheduled_tokens``, but not out of the books."""
        if self._is_first:
            drafted = set(speculation.drafted_request_ids)
            entered = self._kept.enter(plan, drafted)
            cached = plan.scheduled_cached_reqs
            for index, request_id in enumerate(cached.req_ids):
                if request_id in entered:
                    cached.new_token_ids[index] = [entered[request_id]]
            received = pb.SpeculatedRows(left_out_request_ids=drafted - entered.keys(), drafts=entered)
        self._rows = received = received or pb.SpeculatedRows()
        _leave_out(plan, received.left_out_request_ids)
        self._sent_tokens = dict(plan.num_scheduled_tokens)
        if self._verdicts is not None:
            _leave_out(plan, self._verdicts.stale(plan, received.drafts))

    def arrived(self, plan: SchedulerOutput, hidden: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """What the stage before has sent, without the rows that this one leaves out."""
        runs = [request_id in plan.num_scheduled_tokens for request_id in self._rows.request_ids]
        counts = [self._sent_tokens[request_id] for request_id in self._rows.request_ids]
        tokens = [run for run, sent in zip(runs, counts, strict=True) for _ in range(sent)]
        return {"tokens": hidden["tokens"][torch.tensor(tokens)], "states": hidden["states"][torch.tensor(runs)]}

    def rows(self, plan: SchedulerOutput) -> pb.SpeculatedRows:
        """What the next stage must know of the step that has just run."""
        return pb.SpeculatedRows(
            left_out_request_ids=self._rows.left_out_request_ids,
            request_ids=[row.request_id for row in planned_rows(plan)],
            drafts=self._rows.drafts,
        )

    def ran(self, states: Sequence[int]) -> None:
        """The texts of the step's rows, as ``text_state`` sums them up."""
        self._states = states

    def draft(self, plan: SchedulerOutput, speculation: pb.Speculation) -> list[pb.Draft]:
        """One draft for each wanted request of the step that the first stage has just run."""
        if not self._is_first:
            return []
        began = time.perf_counter()
        wanted = set(speculation.draft_request_ids)
        drafts = []
        for row, state in zip(planned_rows(plan), self._states, strict=True):
            if row.request_id in wanted:
                token, confidence = self._drafts.draft(state)
                drafts.append(pb.Draft(request_id=row.request_id, token_id=token, confidence=confidence))
        self._kept.keep(drafts, speculation.drop_fraction)
        self._device.draft(plan.total_num_scheduled_tokens, began)
        return drafts

    def before_sampling(self, plan: SchedulerOutput) -> None:
        """Synthetic sampling has no noise."""

    def after_sampling(self, output: ModelRunnerOutput) -> None:
        """Remembers what was sampled, for the verdicts; the last stage only."""
        if self._verdicts is not None:
            self._verdicts.sampled(output)


def _leave_out(plan: SchedulerOutput, request_ids: Iterable[str]) -> None:
    for request_id in request_ids:
        plan.total_num_scheduled_tokens -= plan.num_scheduled_tokens.pop(request_id)
