"""vLLM's executor over Forerun's stage workers: every step becomes one plan, streamed to all stages at once.

Lives in vLLM's engine-core process. Relies on (vLLM 0.32): ``execute_model(plan, non_block)`` and the
``sample_tokens(grammar, non_block)`` that follows it adjacently, except that with a deferred grammar
(``pending_structured_output_tokens``) the previous step's output is processed in between; and
``collective_rpc`` with the method names in ``_METHODS`` during start-up.

A plan waits for ``sample_tokens`` so that plan and grammar travel in one message; only a deferred grammar is sent
on its own. The engine blocks on futures, never spins.
"""

import signal
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import structlog
from forerun.stage.v1 import service_pb2 as pb
from vllm.v1.core.sched.output import GrammarOutput, SchedulerOutput
from vllm.v1.executor.abstract import Executor
from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT, DraftTokenIds, ModelRunnerOutput

from services.common import vllm_codec, vllm_setup_codec
from services.common.logs import setup_logging
from services.common.process import die_with_parent
from services.scheduler.engine_core_settings import EngineCoreSettings
from services.scheduler.pending_step import PendingDrafts, PendingStep
from services.scheduler.stage_links import StageLinks, StageLostError
from services.scheduler.vllm_stage_setup import configure_requests, link_options, refuse_unsupported

_WATCH_INTERVAL_S = 1.0

_METHODS: dict[str, "pb.WorkerMethod.ValueType"] = {
    "get_kv_cache_spec": pb.WORKER_METHOD_GET_KV_CACHE_SPEC,
    "get_supported_kv_cache_layouts": pb.WORKER_METHOD_GET_SUPPORTED_KV_CACHE_LAYOUTS,
    "set_kv_cache_layout": pb.WORKER_METHOD_SET_KV_CACHE_LAYOUT,
    "determine_available_memory": pb.WORKER_METHOD_DETERMINE_AVAILABLE_MEMORY,
    "initialize_from_config": pb.WORKER_METHOD_INITIALIZE_FROM_CONFIG,
    "compile_or_warm_up_model": pb.WORKER_METHOD_COMPILE_OR_WARM_UP_MODEL,
    "get_supported_tasks": pb.WORKER_METHOD_GET_SUPPORTED_TASKS,
    "update_max_model_len": pb.WORKER_METHOD_UPDATE_MAX_MODEL_LEN,
    "reset_mm_cache": pb.WORKER_METHOD_RESET_MM_CACHE,
    "reset_encoder_cache": pb.WORKER_METHOD_RESET_ENCODER_CACHE,
    "supports_draft_weight_updates": pb.WORKER_METHOD_SUPPORTS_DRAFT_WEIGHT_UPDATES,
}

_log = structlog.get_logger(__name__)


class GrpcExecutor(Executor):
    """Drives PP × TP stage processes; ranks are pipeline-major as in vLLM."""

    supports_pp = True

    @classmethod
    def supports_async_scheduling(cls) -> bool:
        """Stages run plans in order, however early they come."""
        return True

    def _init_executor(self) -> None:
        die_with_parent()
        # A Ctrl-C in the terminal reaches the whole process group; this process ends when its front has drained.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self._settings = EngineCoreSettings.from_additional_config(self.vllm_config.additional_config)
        setup_logging("engine-core", self._settings.telemetry)
        refuse_unsupported(self._settings, self.vllm_config)
        self._step = 0
        self._latest: SchedulerOutput | None = None
        """The step that drafts would follow."""
        self._held: pb.ExecuteRequest | None = None
        self._awaiting_grammar = False
        self._pending: dict[int, PendingStep] = {}
        self._drafting: PendingDrafts | None = None
        self._lengths: list[pb.RemainingLengths] = []
        """What the predictor said since the last step came back; touched on the links' thread only."""
        self._failure: StageLostError | None = None
        self._on_failure: Callable[[], None] | None = None
        addresses = [address for ranks in self._settings.stages for address in ranks]
        self._output_rank = len(addresses) - len(self._settings.stages[-1])
        self._links = StageLinks(addresses, link_options(self._settings), self._on_reply, self._fail)
        try:
            self._configure()
            self._call_all(pb.WORKER_METHOD_LOAD, [[] for _ in addresses])
        except BaseException:
            self._links.close()
            raise
        self._links.call_periodically(_WATCH_INTERVAL_S, self._watch)

    def collective_rpc(
        self,
        method: str | Callable[..., Any],
        timeout: float | None = None,  # noqa: ARG002  vLLM passes it; every call here has a bound of its own
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        non_block: bool = False,
    ) -> Any:
        """One of the closed list of worker methods on every rank; results by rank.

        Raises:
            NotImplementedError: the method is not on the list; arbitrary callables never are.
            StageLostError: a stage failed.
        """
        if method == "shutdown":
            return self._links.close()
        if not isinstance(method, str) or method not in _METHODS or kwargs:
            raise NotImplementedError(f"Forerun's stages do not offer the worker method {method!r}")
        by_rank = [list(args)] * self.parallel_config.world_size
        if method == "initialize_from_config":
            by_rank = [[config] for config in args[0]]
        results = self._call_all(_METHODS[method], by_rank)
        if not non_block:
            return results
        future: Future[Any] = Future()
        future.set_result(results)
        return future

    def execute_model(
        self, scheduler_output: SchedulerOutput, non_block: bool = False
    ) -> Future[ModelRunnerOutput | None] | ModelRunnerOutput | None:
        """Plans one step. None (a resolved future of it) tells the engine that ``sample_tokens`` must follow."""
        self._raise_failure()
        self._latest = scheduler_output
        if not scheduler_output.total_num_scheduled_tokens:
            # Stages only have to hear who has finished; nothing waits for their answer.
            if scheduler_output.finished_req_ids:
                self._links.send(self._plan(scheduler_output, pb.ExecuteRequest.SAMPLING_NONE))
            return _resolved(EMPTY_MODEL_RUNNER_OUTPUT, non_block)
        if scheduler_output.pending_structured_output_tokens:
            plan = self._plan(scheduler_output, pb.ExecuteRequest.SAMPLING_LATER)
            # Before it is sent: the first stage's drafts may be back before the grammar is due.
            self._pending[self._step] = self._pending_step()
            self._links.send(plan)
            self._awaiting_grammar = True
        else:
            self._held = self._plan(scheduler_output, pb.ExecuteRequest.SAMPLING_NOW)
        return _resolved(None, non_block)

    def sample_tokens(
        self, grammar_output: GrammarOutput | None, non_block: bool = False
    ) -> Future[ModelRunnerOutput | None] | ModelRunnerOutput | None:
        """Sends the step planned last; its output comes when the last stage has sampled."""
        self._raise_failure()
        future = self._pending.setdefault(self._step, self._pending_step()).future
        # Once more: a loss between the check above and this line has not seen this future.
        self._raise_failure()
        grammar = b"" if grammar_output is None else vllm_codec.encode_grammar_output(grammar_output)
        if self._awaiting_grammar:
            self._awaiting_grammar = False
            plan = pb.ExecuteRequest(
                step=self._step,
                generation=self._settings.generation,
                sampling=pb.ExecuteRequest.SAMPLING_NOW,
                grammar_output=grammar,
            )
            self._links.send(plan, range(self._output_rank, self.parallel_config.world_size))
        else:
            held, self._held = self._held, None
            if held is None:
                raise RuntimeError("sample_tokens without a planned step")
            held.grammar_output = grammar
            self._links.send(held)
        return future if non_block else future.result()

    def take_draft_token_ids(self) -> DraftTokenIds | None:
        """What the stage's neural drafter says will follow the step before, as deep as the scheduler has asked.

        None without one: drafts of SP come with a step's output.
        """
        if self._settings.experts is None:
            return None
        # SchedulerOutput has no field for it; the scheduler leaves it here when it has seen the step's tokens.
        depth = getattr(self._latest, "forerun_draft_depth", 0)
        if not depth:
            return DraftTokenIds([], [])
        self._step += 1
        drafting = self._drafting = PendingDrafts(self._step)
        self._raise_failure()  # with nothing in between, as in sample_tokens
        order = pb.DraftOrder(depth=depth)
        self._links.send(pb.ExecuteRequest(step=self._step, generation=self._settings.generation, draft=order))
        blocks = drafting.future.result()
        return DraftTokenIds([each.request_id for each in blocks], [list(each.token_ids) for each in blocks])

    def register_failure_callback(self, callback: Callable[[], None]) -> None:
        """Called at once when a stage has been lost already."""
        self._on_failure = callback
        if self._failure is not None:
            callback()

    def check_health(self) -> None:
        """Raises ``StageLostError`` once a stage is lost."""
        self._raise_failure()

    def shutdown(self) -> None:
        """Ends the streams; the stages exit."""
        self._links.close()

    def _plan(self, output: SchedulerOutput, sampling: "pb.ExecuteRequest.Sampling.ValueType") -> pb.ExecuteRequest:
        self._step += 1
        traceparents: dict[str, str] = getattr(output, "forerun_traceparents", {})
        return pb.ExecuteRequest(
            step=self._step,
            generation=self._settings.generation,
            scheduler_output=vllm_codec.encode_scheduler_output(output),
            sampling=sampling,
            traces=[
                pb.RequestTrace(request_id=request_id, traceparent=traceparent)
                for request_id, traceparent in traceparents.items()
            ],
            speculation=getattr(output, "forerun_speculation", None),
            after_idle=getattr(output, "forerun_after_idle", False),
            length_queries=[
                pb.LengthQuery(request_id=request_id, answer_tokens=tokens)
                for request_id, tokens in getattr(output, "forerun_length_queries", ())
            ],
        )

    def _pending_step(self) -> PendingStep:
        speculates = self._settings.speculation is not None
        return PendingStep(drafts_due=speculates, times=[None] * len(self._settings.stages))

    def _on_reply(self, rank: int, reply: pb.ExecuteResponse) -> None:
        if reply.HasField("remaining_lengths"):
            self._lengths.append(reply.remaining_lengths)
        elif reply.HasField("error"):
            _log.error("step_failed", rank=rank, step=reply.step, traceback=reply.error.traceback)
            self._fail(StageLostError(f"stage {rank}: {reply.error.kind}: {reply.error.message}"))
        elif self._drafting is not None and reply.step == self._drafting.step:
            if rank == self._output_rank:
                drafting, self._drafting = self._drafting, None
                drafting.future.set_result(list(reply.draft_blocks))
        elif (pending := self._pending.get(reply.step)) is not None:
            try:
                stage = rank // self.parallel_config.tensor_parallel_size
                pending.take(reply, stage, is_first=rank == 0, is_last=rank == self._output_rank)
            except ValueError as error:
                self._fail(StageLostError(f"stage {rank} answered step {reply.step} with garbage: {error}"))
                return
            if pending.is_complete:
                del self._pending[reply.step]
                # As with the drafts.
                pending.output.forerun_remaining_lengths, self._lengths = self._lengths, []  # type: ignore[union-attr]
                pending.future.set_result(pending.output)

    def _fail(self, error: StageLostError) -> None:
        if self._failure is not None:
            return
        self._failure = error
        _log.error("replica_lost", reason=str(error))
        for pending in self._awaited():
            pending.future.set_exception(error)
        self._pending.clear()
        self._drafting = None
        if self._on_failure is not None:
            self._on_failure()

    def _watch(self) -> None:
        oldest = min((pending.sent_s for pending in self._awaited()), default=None)
        if oldest is not None and time.monotonic() - oldest > self._settings.step_timeout_s:
            self._fail(StageLostError(f"no answer to a step within {self._settings.step_timeout_s:g} s"))

    def _awaited(self) -> list[PendingStep | PendingDrafts]:
        drafting = self._drafting
        return [*list(self._pending.values()), *([] if drafting is None else [drafting])]

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _configure(self) -> None:
        for rank, response in enumerate(self._links.configure(configure_requests(self._settings, self.vllm_config))):
            _log.info("stage_configured", rank=rank, device=response.device, process=response.process_id)

    def _call_all(self, method: "pb.WorkerMethod.ValueType", arguments: list[list[Any]]) -> list[Any]:
        requests = [
            pb.CallWorkerRequest(
                generation=self._settings.generation, method=method, arguments=vllm_setup_codec.encode_setup(each)
            )
            for each in arguments
        ]
        return [vllm_setup_codec.decode_setup(result) for result in self._links.call(requests)]


def _resolved(value: Any, non_block: bool) -> Any:
    if not non_block:
        return value
    future: Future[Any] = Future()
    future.set_result(value)
    return future
