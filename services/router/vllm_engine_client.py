"""vLLM's ``EngineClient`` with the domain call behind it, so that vLLM's own HTTP app runs over any replicas."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

from vllm.exceptions import VLLMValidationError
from vllm.outputs import RequestOutput
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.tasks import SupportedTask
from vllm.v1.engine.exceptions import EngineDeadError

from services.common.errors import RequestEndedError, unavailable
from services.router.admission import Admission
from services.router.generate import GenerateCall
from services.router.http_exchange import CURRENT_EXCHANGE
from services.router.replica_pool import ReplicaPool
from services.router.request import Edge, RouterEvent, RouterRequest, Started, TokensPrompt
from services.router.request_ids import wire_request_id
from services.router.vllm_errors import HttpError, http_error
from services.router.vllm_outputs import OutputBuilder
from services.router.vllm_rendering import VllmRenderer
from services.router.vllm_unserved import UnservedEngineMethods
from services.scheduler.vllm_sampling import from_vllm

SUPPORTED_TASKS: tuple[SupportedTask, ...] = ("generate",)


class RouterEngineClient(UnservedEngineMethods):
    """Generates and tells health; everything else belongs to replicas and answers 501."""

    def __init__(
        self, call: GenerateCall, pool: ReplicaPool, admission: Admission, renderer: VllmRenderer, model: str
    ) -> None:
        """``model``: the served name whose files ``renderer`` has loaded; other models of the fleet are not served."""
        self._model = model
        self._call = call
        self._pool = pool
        self._admission = admission
        self.vllm_config = renderer.vllm_config
        self.model_config = renderer.vllm_config.model_config
        self.renderer = renderer.renderer
        self.input_processor = renderer.input_processor

    @property
    def is_running(self) -> bool:
        return True

    @property
    def is_stopped(self) -> bool:
        return False

    @property
    def errored(self) -> bool:
        # vLLM's app shuts its server down on an engine error; replicas come back.
        return False

    @property
    def dead_error(self) -> EngineDeadError:
        return EngineDeadError()

    def check_admission(self, n: int = 1, request_id: str | None = None) -> None:  # noqa: ARG002  (vLLM's names)
        """Raises 429 or 503 before a response is begun."""
        try:
            self._admission.check_room()
            if not self._pool.serves(self._model):
                raise unavailable("no replica is serving; try again later")
        except RequestEndedError as error:
            raise _noted(error) from None

    async def generate(
        self,
        prompt: Any,
        sampling_params: SamplingParams,
        request_id: str,
        *,
        trace_headers: Mapping[str, str] | None = None,
        priority: int = 0,
        reasoning_ended: bool | None = None,
        lora_request: object | None = None,
        **_unused: Any,
    ) -> AsyncGenerator[RequestOutput, None]:
        """One rendered prompt's answer. Raises exceptions of vLLM's that its app turns into statuses."""
        if lora_request is not None:
            raise NotImplementedError("LoRA adapters are not served")
        token_ids = _token_ids(prompt)
        outputs = OutputBuilder(request_id, token_ids, prompt.get("prompt"), sampling_params)
        _note_call()
        try:
            request = self._request(token_ids, sampling_params, request_id, trace_headers, priority, reasoning_ended)
            async with aclosing(self._call.generate(request)) as batches:
                async for batch in batches:
                    _note_start(batch[0])
                    output = outputs.take(batch)
                    if output is not None:
                        yield output
        except RequestEndedError as error:
            raise _noted(error) from None

    def _request(
        self,
        token_ids: list[int],
        params: SamplingParams,
        request_id: str,
        trace_headers: Mapping[str, str] | None,
        priority: int,
        reasoning_ended: bool | None,
    ) -> RouterRequest:
        exchange = CURRENT_EXCHANGE.get()
        headers = trace_headers or (exchange.headers if exchange else {})
        return RouterRequest(
            prompt=TokensPrompt(tuple(token_ids)),
            sampling=from_vllm(params),
            edge=Edge.HTTP,
            request_id=wire_request_id(request_id, self._admission.holds),
            model=self._model,
            priority=priority,
            tenant=exchange.tenant if exchange else "",
            final_only=params.output_kind is RequestOutputKind.FINAL_ONLY,
            traceparent=headers.get("traceparent", ""),
            tracestate=headers.get("tracestate", ""),
            reasoning_ended=reasoning_ended,
            operation="chat" if request_id.startswith("chat") else "",
        )

    async def check_health(self) -> None:
        """Raises ``EngineDeadError``, which answers 503, while no replica serves or the router is stopping."""
        if self._admission.closed or not self._pool.serves(self._model):
            raise EngineDeadError()

    async def get_supported_tasks(self) -> tuple[SupportedTask, ...]:
        return SUPPORTED_TASKS

    async def is_tracing_enabled(self) -> bool:
        return True

    async def do_log_stats(self) -> None:
        """Replicas log their own."""


def _token_ids(prompt: Any) -> list[int]:
    token_ids = prompt.get("prompt_token_ids") if isinstance(prompt, Mapping) else None
    if token_ids is None or prompt.get("type") not in (None, "token"):
        raise VLLMValidationError("only text and token prompts are served", parameter="prompt")
    return list(token_ids)


def _note_call() -> None:
    exchange = CURRENT_EXCHANGE.get()
    if exchange is not None:
        exchange.is_counted = True


def _note_start(event: RouterEvent) -> None:
    exchange = CURRENT_EXCHANGE.get()
    if exchange is not None and isinstance(event, Started):
        exchange.has_output, exchange.trace_id = True, event.trace_id
        exchange.expert_choice = event.expert_choice


def _noted(error: RequestEndedError) -> HttpError:
    """For the middleware, which can still choose the status of a stream that has not begun."""
    exchange = CURRENT_EXCHANGE.get()
    if exchange is not None and exchange.ended is None:
        exchange.ended = error
    return http_error(error)
