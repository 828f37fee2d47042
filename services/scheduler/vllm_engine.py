"""vLLM's ``AsyncLLM`` as an ``Engine``.

The front process tokenizes nothing and computes nothing: it hands token ids to the engine core, vLLM's child process,
and turns what comes back into events. Detokenization, stop strings, logprobs and grammars are vLLM's.

Relies on (vLLM 0.32): ``AsyncLLM`` may be built in another thread than that of its event loop; a rendered
``TokensInput`` skips its tokenizer threads; trace headers pass only where a trace endpoint is configured.
"""

import asyncio
import multiprocessing
import threading
from collections.abc import AsyncGenerator
from contextlib import aclosing

import structlog
from vllm.exceptions import GracefulHTTPError, VLLMClientError
from vllm.inputs.engine import tokens_input
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

from services.common.daemon_thread import Promise
from services.common.errors import ConfigError, RequestEndedError, overloaded
from services.common.outcome import Outcome
from services.common.types import GenerationEvent, ReplicaInfo, Submission
from services.common.validation import effective_max_tokens
from services.common.version import FORERUN_VERSION, vllm_version
from services.scheduler.config import SchedulerConfig
from services.scheduler.engine import EngineLoad, EngineLostError
from services.scheduler.engine_core_settings import RESERVATION_HEADER, TENANT_HEADER
from services.scheduler.vllm_arguments import core_settings, engine_arguments
from services.scheduler.vllm_detokenizer import guard_prompt_ends
from services.scheduler.vllm_output import OutputTranslator
from services.scheduler.vllm_sampling import refusal, to_vllm
from services.scheduler.vllm_stats import LoadRecorder

CORE_STOP_TIMEOUT_S = 5.0
"""What the engine core gets to end by itself."""

HUNG_AFTER = 1.5
"""Times ``step_timeout_s`` without a step while there is work."""

KILL_INTERVAL_S = 0.5
"""Until it is built, an engine that is no longer wanted may start another process; it is looked for this often."""

_log = structlog.get_logger(__name__)


class VllmEngine:
    """An ``Engine`` over vLLM; one engine core, with our executor where there are stages."""

    def __init__(self, config: SchedulerConfig, address: str, generation: int) -> None:
        """Raises ``ConfigError`` for engine arguments that cannot work."""
        self._config = config
        self._generation = generation
        self._settings = core_settings(config, address, generation)
        self._arguments = engine_arguments(config, self._settings)
        self._recorder = LoadRecorder()
        self._llm: AsyncLLM | None = None
        self._live_sequences = 0
        self._stop_requested = threading.Event()
        self._owner_done: Promise[None] | None = None

    async def start(self) -> None:
        built: Promise[AsyncLLM] = Promise()
        self._owner_done = Promise()
        # Building blocks for as long as the model takes to load. The thread lives on until the end, since the engine
        # core asks the kernel to end it with the thread that started it.
        owner = threading.Thread(target=self._own, args=(built, self._owner_done), name="engine-owner", daemon=True)
        owner.start()
        self._llm = llm = await built.wait()
        # Only the check for an endpoint reads this field from now on, and it would drop our headers.
        llm.observability_config.otlp_traces_endpoint = "forerun"
        guard_prompt_ends(llm.output_processor)
        # Of the front, only the check for options that cannot be speculated with reads this; such requests run plainly
        # here (``services.workers.vllm_plain_options``) and are not to be refused.
        llm.input_processor.speculative_config = None
        # Also starts the tasks that listen to the engine core.
        tasks = await llm.get_supported_tasks()
        if "generate" not in tasks:
            raise ConfigError(f"model: {self._config.model} does not generate text (it supports {', '.join(tasks)})")

    async def generate(self, submission: Submission) -> AsyncGenerator[GenerationEvent, None]:
        llm, sampling = self._running(), submission.sampling
        room = effective_max_tokens(len(submission.prompt_token_ids), sampling, llm.model_config.max_model_len)
        params = to_vllm(sampling, final_only=submission.final_only, max_tokens=room, routed=submission.expert)
        outputs = llm.generate(
            tokens_input(list(submission.prompt_token_ids)),
            params,
            submission.request_id,
            trace_headers=_headers(submission),
            priority=submission.priority,
            reasoning_ended=submission.reasoning_ended,
        )
        translator = OutputTranslator(sampling.n)
        if not self._live_sequences:
            self._recorder.note_work()
        self._live_sequences += sampling.n
        try:
            async with aclosing(outputs):
                async for output in outputs:
                    for event in translator.events(output):
                        yield event
        except EngineDeadError as error:
            raise EngineLostError(str(error) or "the engine core died") from error
        except VLLMClientError as error:
            raise refusal(error, sampling) from error
        except GracefulHTTPError as error:
            raise overloaded(error.message, retry_after_ms=1000) from error
        except EngineGenerateError as error:
            raise _explained(error, submission) from error
        finally:
            self._live_sequences -= sampling.n

    def info(self) -> ReplicaInfo:
        config, experts = self._running().vllm_config, self._config.experts
        load = self.load()
        return ReplicaInfo(
            replica_id=self._config.replica_id,
            generation=self._generation,
            model_names=self._config.model_names,
            model=self._config.model,
            max_model_len=config.model_config.max_model_len,
            vocab_size=config.model_config.get_vocab_size(),
            dtype=str(config.model_config.dtype).removeprefix("torch."),
            pipeline_stages=config.parallel_config.pipeline_parallel_size,
            tensor_parallel_ranks=config.parallel_config.tensor_parallel_size,
            total_blocks=load.total_blocks,
            block_size=config.cache_config.block_size,
            max_running_requests=config.scheduler_config.max_num_seqs,
            max_waiting_requests=self._config.max_queued_requests,
            running_requests=load.running,
            waiting_requests=load.waiting,
            forerun_version=FORERUN_VERSION,
            free_blocks=load.free_blocks,
            vllm_version=vllm_version(),
            experts=() if experts is None else experts.experts,
            deepest_draft_tokens=0 if experts is None else experts.deepest,
        )

    def load(self) -> EngineLoad:
        # One block, the null block, is nobody's.
        total = (self._running().vllm_config.cache_config.num_gpu_blocks or 1) - 1
        return self._recorder.load(self._live_sequences, total)

    @property
    def alive(self) -> bool:
        if self._llm is None or self._llm.errored:
            return False
        # The engine core fails slow steps itself; one that cannot even do that is as good as dead.
        is_hung = self._live_sequences > 0 and self._recorder.silent_s > HUNG_AFTER * self._config.step_timeout_s
        return not is_hung

    async def stop(self) -> None:
        self._stop_requested.set()
        if self._owner_done is None:
            return
        ended = asyncio.create_task(self._owner_done.wait())
        while not ended.done():
            if self._llm is None:
                # Still building: nobody can reach its processes but through this process' children.
                _kill_children()
            await asyncio.wait([ended], timeout=KILL_INTERVAL_S)

    def _own(self, built: Promise[AsyncLLM], done: Promise[None]) -> None:
        """The owner thread: builds the engine, keeps it, ends it."""
        try:
            llm = self._build()
            built.keep(llm)
            self._stop_requested.wait()
            llm.shutdown(timeout=CORE_STOP_TIMEOUT_S)
        except ConfigError as error:
            built.fail(error)
        except Exception as error:  # noqa: BLE001  (whatever kept the engine from starting is the answer to start())
            built.fail(EngineLostError(f"{type(error).__name__}: {error}"))
        finally:
            done.keep(None)

    def _build(self) -> AsyncLLM:
        try:
            vllm_config = self._arguments.create_engine_config()
        except (ValueError, OSError) as error:
            raise ConfigError(f"model or engine_args: {error}") from error
        return AsyncLLM.from_vllm_config(
            vllm_config, stat_loggers=[self._recorder.for_engine], disable_log_stats=self._arguments.disable_log_stats
        )

    def _running(self) -> AsyncLLM:
        if self._llm is None:
            raise EngineLostError("the engine is not started")
        return self._llm


def _headers(submission: Submission) -> dict[str, str] | None:
    headers = {}
    if submission.traceparent:
        headers["traceparent"] = submission.traceparent
        if submission.tracestate:
            headers["tracestate"] = submission.tracestate
    if submission.reservation_id:
        headers[RESERVATION_HEADER] = submission.reservation_id
    if submission.tenant:
        headers[TENANT_HEADER] = submission.tenant
    return headers or None


def _explained(error: EngineGenerateError, submission: Submission) -> RequestEndedError:
    """vLLM wraps whatever goes wrong with one request; values that it refuses late are the request's fault."""
    cause = error.__cause__
    if isinstance(cause, (ValueError, TypeError)):
        return refusal(cause, submission.sampling)
    _log.error("the engine failed on a request", request=submission.request_id, exc_info=cause)
    return RequestEndedError(Outcome.INTERNAL, f"the engine failed on this request ({type(cause).__name__})")


def _kill_children() -> None:
    for child in multiprocessing.active_children():
        child.kill()
