"""A stage whose device only takes time: real plans, real hops and real books, no model.

With it the scheduling of a pipeline can be measured at batches and step times that no machine at hand computes. Its
answers are checked like a model's: each stage keeps the text of every request in KV slots of its own, and the last one
samples a hash of what it reads there. Sampling options do not change the text, apart from those that end it.
"""

import time
from collections.abc import Sequence
from typing import Any

import torch
from forerun.stage.v1 import service_pb2 as pb
from vllm.v1.core.sched.output import GrammarOutput, SchedulerOutput
from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT, ModelRunnerOutput

from services.common.errors import ConfigError
from services.workers.kv_books import KvBooks, Row, planned_rows
from services.workers.length_states import LengthStates
from services.workers.place import StagePlace
from services.workers.synthetic_config import SyntheticConfig
from services.workers.synthetic_device import SyntheticDevice
from services.workers.synthetic_speculation import SyntheticSpeculation
from services.workers.synthetic_text import next_token, text_state
from services.workers.vllm_stage_config import stage_config, stage_fingerprint
from services.workers.vllm_synthetic_worker import SyntheticWorker


class SyntheticStage:
    """A ``Stage`` with a synthetic device. Not thread-safe."""

    def __init__(self, synthetic: SyntheticConfig, place: StagePlace, engine_args_json: str) -> None:
        """Raises ``ConfigError``, and what vLLM raises for bad engine arguments."""
        if place.stages < 2:
            raise ConfigError("synthetic: needs at least two pipeline stages, whose plans carry the tokens")
        self.place = place
        self.config = stage_config(place, engine_args_json)
        self.fingerprint = stage_fingerprint(self.config, engine_args_json)
        self.speculation: SyntheticSpeculation | None = None
        self._synthetic = synthetic
        self._device = SyntheticDevice(synthetic, drafts=place.is_first and bool(place.draft_adapter))
        self._vocabulary = self.config.model_config.get_vocab_size()
        self._worker = SyntheticWorker(self.config, place)
        self._ran: list[tuple[Row, int]] = []
        """The rows of the last step and their states."""

    @property
    def device(self) -> torch.device:
        """Where activations are taken."""
        return torch.device("cpu")

    @property
    def device_name(self) -> str:
        """For people."""
        return "synthetic"

    @property
    def largest_activation_bytes(self) -> int:
        """Bytes of the tokens and states of a full step."""
        scheduler = self.config.scheduler_config
        return int(torch.int32.itemsize * scheduler.max_num_batched_tokens + 8 * scheduler.max_num_seqs)

    @property
    def target_fingerprint(self) -> str:
        """Empty: there are no states that a predictor could read."""
        return ""

    def draft(self, depth: int) -> list[tuple[str, list[int]]]:  # noqa: ARG002
        """Nothing: a synthetic device has no neural drafter."""
        return []

    def length_states(self, plan: SchedulerOutput, queries: Sequence[pb.LengthQuery]) -> LengthStates | None:  # noqa: ARG002
        """None."""
        return None

    def load(self) -> None:
        """There are no weights. Raises ``ConfigError`` when drafts are wanted and none were recorded."""
        if self.place.draft_adapter:
            self.speculation = SyntheticSpeculation(self._synthetic, self._device, self._vocabulary, self.place)

    def call(self, method: str, arguments: list[Any]) -> Any:
        """One of vLLM's worker methods; the closed list is in ``convert.py``."""
        return self._worker.call(method, arguments)

    def forward(
        self, plan: SchedulerOutput, hidden: dict[str, torch.Tensor] | None
    ) -> dict[str, torch.Tensor] | ModelRunnerOutput | None:
        """Enters the step into the books and lasts as long as the profile says.

        Args:
            plan: the step.
            hidden: of the stage before, ``tokens`` int32 [tokens] and ``states`` int64 [rows]; None on the first stage.

        Returns:
            The same of this stage; on the last stage None; an empty output when the plan schedules nothing.
        """
        began = time.perf_counter()
        books = self._books()
        books.take(plan)
        if not plan.total_num_scheduled_tokens:
            return EMPTY_MODEL_RUNNER_OUTPUT
        rows = planned_rows(plan)
        if hidden is not None and self.speculation is not None:
            hidden = self.speculation.arrived(plan, hidden)
        tokens = [token for row in rows for token in row.tokens] if hidden is None else hidden["tokens"].tolist()
        states = [text_state(text) for text in books.run(rows, tokens)]
        if hidden is not None:
            _compare(rows, states, hidden["states"].tolist())
        self._ran = list(zip(rows, states, strict=True))
        if self.speculation is not None:
            self.speculation.ran(states)
        self._device.compute(plan.total_num_scheduled_tokens, began)
        if self.place.is_last:
            return None
        return {"tokens": torch.tensor(tokens, dtype=torch.int32), "states": torch.tensor(states, dtype=torch.int64)}

    def sample(self, grammar: GrammarOutput | None) -> ModelRunnerOutput:  # noqa: ARG002  grammars do not change the text
        """The next token of every row whose text is in whole; its time is part of the step's."""
        books = self._books()
        ids = [row.request_id for row, _ in self._ran]
        sampled = [[next_token(state, self._vocabulary)] if books.is_sampled(row) else [] for row, state in self._ran]
        return ModelRunnerOutput(
            req_ids=ids, req_id_to_index={id_: index for index, id_ in enumerate(ids)}, sampled_token_ids=sampled
        )

    def shutdown(self) -> None:
        """There is nothing to free."""

    def _books(self) -> KvBooks:
        if self._worker.books is None:
            raise RuntimeError("the stage has no KV cache: call INITIALIZE_FROM_CONFIG first")
        return self._worker.books


def _compare(rows: list[Row], own: list[int], received: list[int]) -> None:
    """Raises ``RuntimeError`` when this stage's slots hold another text than those of the stage before."""
    if own != received:
        differing = [row.request_id for row, *states in zip(rows, own, received, strict=True) if states[0] != states[1]]
        raise RuntimeError(f"the KV slots of two stages differ for requests {', '.join(differing)}")
