"""One (pipeline rank, tensor rank) part of the model: vLLM's own worker and model runner, driven step by step.

All that a stage touches of vLLM's insides is in this file. What it relies on (vLLM 0.32, model runner V1):
``WorkerWrapperBase`` builds and initialises the worker; ``model_runner.execute_model(plan, intermediate)`` returns
``IntermediateTensors`` on every stage but the last, and ``None`` on the last, where ``sample_tokens`` follows.
The worker's own ``execute_model`` is not called, since it would receive activations through torch.distributed's
pipeline group; Forerun pushes them over gRPC, so that stages may sit on hosts that share nothing but a network.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import structlog
import torch
from forerun.stage.v1 import service_pb2 as pb
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.sequence import IntermediateTensors
from vllm.v1.core.sched.output import GrammarOutput, SchedulerOutput
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.worker.worker_base import WorkerWrapperBase

from services.common.errors import ConfigError
from services.common.target_fingerprint import target_fingerprint
from services.workers.length_states import LengthStates
from services.workers.place import StagePlace
from services.workers.vllm_cpu_kernels import mend_cpu_kernels
from services.workers.vllm_host_embedding import embed_on_host
from services.workers.vllm_lazy_drafter import LazyDraftModel, LazyEagle, make_lazy
from services.workers.vllm_plain_options import keep_plain_options
from services.workers.vllm_speculation import Speculation
from services.workers.vllm_stage_config import stage_config, stage_fingerprint
from services.workers.vllm_stream_tap import StreamTap, make_tap, rows_of

_log = structlog.get_logger(__name__)


class ModelStage:
    """Not thread-safe: one thread builds it and calls it, since OpenMP and CUDA state belong to a thread."""

    def __init__(self, place: StagePlace, engine_args_json: str) -> None:
        """Builds the configuration; nothing is loaded yet. Raises what vLLM raises for bad engine arguments."""
        self.place = place
        self.config = stage_config(place, engine_args_json)
        self.fingerprint = stage_fingerprint(self.config, engine_args_json)
        self._wrapper: WorkerWrapperBase | None = None
        self.speculation: Speculation | None = None
        """Set by ``load`` when the replica speculates across its stages."""
        self._drafter: LazyEagle | LazyDraftModel | None = None
        """Set by ``load`` when the replica has a neural drafter."""
        self._tap: StreamTap | None = None
        self.target_fingerprint = ""
        """Set by ``load`` on the stage whose states the predictor of remaining lengths reads."""

    @property
    def device(self) -> torch.device:
        """Where the weights are; CPU until they are loaded."""
        return self._wrapper.worker.device if self._wrapper else torch.device("cpu")

    @property
    def device_name(self) -> str:
        """For people, for example "cpu" or "cuda NVIDIA H200"."""
        platform = self.config.device_config.device_type
        return platform if platform == "cpu" else f"{platform} {torch.cuda.get_device_name(0)}"

    @property
    def largest_activation_bytes(self) -> int:
        """Bytes of hidden states and residuals of a full step, to be checked against the message limit."""
        tokens = self.config.scheduler_config.max_num_batched_tokens
        model = self.config.model_config
        return int(2 * tokens * model.get_hidden_size() * model.dtype.itemsize)

    def load(self) -> None:
        """Joins the other ranks (all must load at the same time) and loads this stage's weights."""
        wrapper = WorkerWrapperBase(rpc_rank=0, global_rank=self.place.rank)
        wrapper.init_worker(
            [
                {
                    "vllm_config": self.config,
                    "local_rank": 0,
                    "rank": self.place.rank,
                    "distributed_init_method": f"tcp://{self.place.rendezvous}",
                    "is_driver_worker": self.place.tensor_rank == 0,
                }
            ]
        )
        if self.config.speculative_config is not None:
            mend_cpu_kernels()
        wrapper.init_device()
        self._wrapper = wrapper
        with set_current_vllm_config(self.config):
            if self.config.speculative_config is not None:
                self._drafter = make_lazy(wrapper.worker.model_runner, self.config)
                keep_plain_options(wrapper.worker.model_runner, self.config)
            wrapper.worker.load_model()
        if self.place.embeds_on_host:
            embed_on_host(wrapper.worker.model_runner.get_model())
        self._prepare_intermediate_tensors()
        runner = wrapper.worker.model_runner
        self._tap = tap = make_tap(self.config, runner, self.place)
        if self.place.draft_adapter:
            self.speculation = Speculation(self.config, runner, self.place, tap)
        if tap is not None and self.place.predictor_layer in tap.layers:
            self.target_fingerprint = _target_fingerprint(self.config)

    def call(self, method: str, arguments: list[Any]) -> Any:
        """One of vLLM's worker methods; the closed list is in ``convert.py``."""
        worker = self._require_worker()
        with set_current_vllm_config(self.config):
            return getattr(worker, method)(*arguments)

    def forward(
        self, plan: SchedulerOutput, hidden: dict[str, torch.Tensor] | None
    ) -> dict[str, torch.Tensor] | ModelRunnerOutput | None:
        """Runs the stage's layers over the plan's tokens.

        Args:
            plan: the step.
            hidden: the previous stage's output, each [tokens, hidden size]; None on the first stage.

        Returns:
            This stage's hidden states for the next one; on the last stage None, after which ``sample`` must be called;
            an empty output when the plan schedules nothing.
        """
        runner = self._require_worker().model_runner
        if self._drafter is not None:
            self._drafter.begin_step(plan.finished_req_ids)
        with torch.inference_mode():
            output = runner.execute_model(plan, None if hidden is None else self._arrived(hidden))
        if isinstance(output, IntermediateTensors):
            return dict(output.tensors)
        if output is None or isinstance(output, ModelRunnerOutput):
            return output
        raise TypeError(f"vLLM's model runner returned {type(output).__name__}; is async scheduling on?")

    def sample(self, grammar: GrammarOutput | None) -> ModelRunnerOutput:
        """Samples the step that ``forward`` has just run on the last stage."""
        runner = self._require_worker().model_runner
        with torch.inference_mode(), _unfinished_prefills_keep_their_noise(runner):
            output = runner.sample_tokens(grammar)
        if not isinstance(output, ModelRunnerOutput):
            raise TypeError(f"vLLM's model runner sampled {type(output).__name__}; is async scheduling on?")
        return output

    def draft(self, depth: int) -> list[tuple[str, list[int]]]:
        """What the neural drafter says will follow the step that ``sample`` has just ended.

        Args:
            depth: tokens for each request, at least 1.

        Returns:
            Each request's draft tokens; nothing where there is no drafter, or vLLM left it out of the step.
        """
        if self._drafter is None:
            return []
        with torch.inference_mode(), set_current_vllm_config(self.config):
            return self._drafter.draft(depth)

    def length_states(self, plan: SchedulerOutput, queries: Sequence[pb.LengthQuery]) -> LengthStates | None:
        """What the predictor of remaining lengths reads of the step that ``forward`` has just run.

        Args:
            plan: the step.
            queries: of which requests.

        Returns:
            None on stages that do not have that layer, and where none of the requests ran.
        """
        if self._tap is None or not self.target_fingerprint or not plan.total_num_scheduled_tokens:
            return None
        wanted = {query.request_id: query.answer_tokens for query in queries}
        ids, _, ends = rows_of(self._require_worker().model_runner.input_batch, plan, wanted)
        if not ids:
            return None
        half = torch.finfo(torch.float16).max
        states = self._tap.streams[self.place.predictor_layer][ends].float().clamp(-half, half).half().cpu()
        return LengthStates(tuple(ids), tuple(wanted[each] for each in ids), states.numpy().tobytes())

    def shutdown(self) -> None:
        """Frees device state; safe to call twice and before ``load``."""
        if self._wrapper is not None:
            self._wrapper.worker.shutdown()
            self._wrapper = None

    def _arrived(self, hidden: dict[str, torch.Tensor]) -> IntermediateTensors:
        return IntermediateTensors(hidden) if self.speculation is None else self.speculation.arrived(hidden)

    def _require_worker(self) -> Any:
        if self._wrapper is None:
            raise RuntimeError("the stage is not loaded: call LOAD first")
        return self._wrapper.worker

    def _prepare_intermediate_tensors(self) -> None:
        # Upstream gap (vLLM 0.32): the buffer that receives activations is made by a warm-up run only, which the CPU
        # worker skips in eager mode; every stage but the first then asserts. tests/e2e/test_equality.py fails when
        # upstream makes it itself: it looks for the line that is logged here.
        runner = self._require_worker().model_runner
        if not self.place.is_first and runner.intermediate_tensors is None:
            runner.intermediate_tensors = runner.model.make_empty_intermediate_tensors(
                batch_size=runner.max_num_tokens, dtype=self.config.model_config.dtype, device=runner.device
            )
            _log.info("made the activation buffers that vLLM's warm-up did not make")


def _target_fingerprint(config: VllmConfig) -> str:
    """Empty, and logged, where it cannot be had: learned parts fail open."""
    try:
        return target_fingerprint(config.model_config.model, config.model_config.hf_config)
    except ConfigError as error:
        _log.warning("remaining lengths are not predicted", reason=str(error))
        return ""


@contextmanager
def _unfinished_prefills_keep_their_noise(runner: Any) -> Iterator[None]:
    """Hides the generators of rows whose sample is thrown away, so that sampling leaves them alone.

    Upstream gap (vLLM 0.32): the runner lets such rows draw and then sets their generators back, which a CPU's
    generator cannot do; a seeded request whose prompt is prefilled in pieces would end the engine.
    tests/e2e/test_seeded_prefill.py fails when upstream no longer does that.
    """
    generators = runner.input_batch.generators
    unfinished = runner.discard_request_mask.np[: runner.input_batch.num_reqs].nonzero()[0]
    hidden = {int(row): generators.pop(int(row)) for row in unfinished if int(row) in generators}
    try:
        yield
    finally:
        generators.update(hidden)
