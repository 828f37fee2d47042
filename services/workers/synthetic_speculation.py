"""Speculative parallelism over synthetic devices: drafts that are right as often as was recorded."""

import time

import torch
from forerun.stage.v1 import service_pb2 as pb
from vllm.v1.core.sched.output import SchedulerOutput

from services.common.acceptance_curve import AcceptanceCurve
from services.common.errors import ConfigError
from services.workers.kept_drafts import KeptDrafts
from services.workers.kv_books import planned_rows
from services.workers.place import StagePlace
from services.workers.synthetic_config import SyntheticConfig
from services.workers.synthetic_device import SyntheticDevice
from services.workers.synthetic_text import RecordedDrafts


class SyntheticSpeculation:
    """A ``StageSpeculation``: the first stage drafts, the others leave out what it left out."""

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

    def before_forward(
        self, plan: SchedulerOutput, speculation: pb.Speculation, received: pb.PushActivationsRequest | None
    ) -> set[str]:
        """Enters the drafts; takes requests without one out of ``num_scheduled_tokens``, but not out of the books."""
        if self._is_first:
            drafted = set(speculation.drafted_request_ids)
            entered = self._kept.enter(plan, drafted)
            cached = plan.scheduled_cached_reqs
            for index, request_id in enumerate(cached.req_ids):
                if request_id in entered:
                    cached.new_token_ids[index] = [entered[request_id]]
            left_out = drafted - entered.keys()
        else:
            left_out = set() if received is None else set(received.left_out_request_ids)
        for request_id in left_out:
            plan.total_num_scheduled_tokens -= plan.num_scheduled_tokens.pop(request_id)
        return left_out

    def draft(
        self, plan: SchedulerOutput, speculation: pb.Speculation, output: dict[str, torch.Tensor]
    ) -> list[pb.Draft]:
        """One draft for each wanted request of the step that the first stage has just run."""
        if not self._is_first:
            return []
        began = time.perf_counter()
        wanted = set(speculation.draft_request_ids)
        drafts = []
        for row, state in zip(planned_rows(plan), output["states"].tolist(), strict=True):
            if row.request_id in wanted:
                token, confidence = self._drafts.draft(state)
                drafts.append(pb.Draft(request_id=row.request_id, token_id=token, confidence=confidence))
        self._kept.keep(drafts, speculation.drop_fraction)
        self._device.draft(plan.total_num_scheduled_tokens, began)
        return drafts

    def before_sampling(self, plan: SchedulerOutput) -> None:
        """Synthetic sampling has no noise."""
