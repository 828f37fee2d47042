"""StageService: the thin gRPC face of one stage. Everything that computes runs on the one model thread."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn, TypeAlias, TypeVar

import grpc.aio
import msgspec
import structlog
from forerun.stage.v1 import service_pb2 as pb
from forerun.stage.v1 import service_pb2_grpc
from opentelemetry.trace import Tracer

from services.common import vllm_setup_codec
from services.common.address import join_address, split_address
from services.common.errors import ConfigError
from services.common.rpc import aio_channel
from services.common.version import FORERUN_VERSION, STAGE_PROTOCOL_VERSION, vllm_version
from services.workers.activation_sender import ActivationSender
from services.workers.activations import ActivationInbox, ActivationsLostError
from services.workers.config import StageConfig
from services.workers.convert import WORKER_METHODS, place_from_proto
from services.workers.length_client import LengthClient
from services.workers.metrics import StageMetrics
from services.workers.spans import StageSpans
from services.workers.stage import Stage, StageBuilder
from services.workers.step_runner import StepRunner

_log = structlog.get_logger(__name__)

_CALL_ERRORS = (
    ConfigError,
    msgspec.DecodeError,
    KeyError,
    TypeError,
    ValueError,
    RuntimeError,
    AssertionError,
    OSError,
)  # fmt: skip
"""What a worker's method raises when it cannot do what it is asked."""
_SENDER_CLOSE_S = 2.0
_MODEL_CLOSE_S = 5.0

T = TypeVar("T")
_Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class StageServicer(service_pb2_grpc.StageServiceServicer):
    """Serves one scheduler generation. ``finished`` is set when that is over and the process should exit."""

    def __init__(self, config: StageConfig, metrics: StageMetrics, tracer: Tracer, build_stage: StageBuilder) -> None:
        self._config = config
        self._metrics = metrics
        self._tracer = tracer
        self._build_stage = build_stage
        # One thread for everything: OpenMP teams and CUDA contexts belong to the thread that made them, and FIFO
        # order on it is what keeps a step's forward pass and its sampling adjacent.
        self._model_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="model")
        self._inbox = ActivationInbox()
        self._configured: pb.ConfigureRequest | None = None
        self._stage: Stage | None = None
        self._runner: StepRunner | None = None
        self._spans: StageSpans | None = None
        self._sender: ActivationSender | None = None
        self._length_client: LengthClient | None = None
        self._replies: asyncio.Queue[asyncio.Future[pb.ExecuteResponse | None] | None] = asyncio.Queue()
        self._executing = False
        self.finished = asyncio.Event()

    async def Configure(self, request: pb.ConfigureRequest, context: _Context) -> pb.ConfigureResponse:
        if self._configured is not None:
            if request.generation > self._configured.generation and not self._executing:
                # The scheduler that configured this stage never came back; make way for the next one.
                self.finished.set()
            await _refuse(context, f"already configured by generation {self._configured.generation}; restart the stage")
        if differing := _differing_versions(request):
            await _refuse(context, differing)
        self._configured = request
        own_host, _ = split_address(self._config.server.listen)
        request.rendezvous_address = _with_free_port(request.rendezvous_address or join_address(own_host, 0))
        try:
            stage = await self._on_model_thread(self._build_stage, place_from_proto(request), request.engine_args_json)
        except Exception as error:  # noqa: BLE001  vLLM raises anything for bad arguments; the scheduler must be told
            self._configured = None
            await _refuse(context, f"engine_args: {error}")
        if stage.fingerprint != request.fingerprint:
            self._configured = None
            await _refuse(
                context,
                f"fingerprint: scheduler {request.fingerprint[:12]}, stage {stage.fingerprint[:12]}; both must read "
                "the same model files and engine arguments",
            )
        if request.next_stage_address and stage.largest_activation_bytes > self._config.server.max_message_bytes:
            self._configured = None
            await _refuse(
                context,
                f"server.max_message_bytes: {self._config.server.max_message_bytes} is less than the "
                f"{stage.largest_activation_bytes} bytes of a full step's activations; raise it on every stage, or "
                "lower max_num_batched_tokens",
            )
        self._adopt(request, stage)
        return pb.ConfigureResponse(
            fingerprint=stage.fingerprint,
            process_id=os.getpid(),
            device=stage.device_name,
            rendezvous_address=request.rendezvous_address,
        )

    async def CallWorker(self, request: pb.CallWorkerRequest, context: _Context) -> pb.CallWorkerResponse:
        stage = self._stage
        if stage is None or self._configured is None or request.generation != self._configured.generation:
            await _refuse(context, f"not configured for generation {request.generation}")
        try:
            result: Any = None
            if request.method == pb.WORKER_METHOD_LOAD:
                await self._on_model_thread(stage.load)
                self._connect_predictor(stage, self._configured)
            elif request.method in WORKER_METHODS:
                arguments = vllm_setup_codec.decode_setup(request.arguments)
                result = await self._on_model_thread(stage.call, WORKER_METHODS[request.method], arguments)
            else:
                await context.abort(grpc.StatusCode.UNIMPLEMENTED, f"unknown worker method {request.method}")
            return pb.CallWorkerResponse(result=vllm_setup_codec.encode_setup(result))
        except _CALL_ERRORS as error:
            _log.error("worker_call_failed", method=pb.WorkerMethod.Name(request.method), exc_info=True)
            await context.abort(grpc.StatusCode.INTERNAL, f"{type(error).__name__}: {error}")

    async def Execute(
        self, request_iterator: AsyncIterator[pb.ExecuteRequest], context: _Context
    ) -> AsyncIterator[pb.ExecuteResponse]:
        runner = self._runner
        if runner is None:
            await _refuse(context, "not configured")
        if self._executing:
            await _refuse(context, "another scheduler is connected")
        self._executing = True
        reader = asyncio.create_task(self._read_plans(runner, request_iterator))
        try:
            while (reply := await self._replies.get()) is not None:
                if (message := await reply) is not None:
                    yield message
        finally:
            reader.cancel()
            _log.info("scheduler_left", generation=self._generation)
            self.finished.set()

    async def PushActivations(
        self, request_iterator: AsyncIterator[pb.PushActivationsRequest], context: _Context
    ) -> pb.PushActivationsResponse:
        received = 0
        try:
            async for message in request_iterator:
                if message.generation != self._generation:
                    self._metrics.dropped.inc()
                    continue
                self._inbox.put(message)
                received += 1
        except ActivationsLostError as error:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error))
        finally:
            self._inbox.lose("the previous stage went away")
        return pb.PushActivationsResponse(received_steps=received)

    async def GetStageInfo(self, request: pb.GetStageInfoRequest, context: _Context) -> pb.GetStageInfoResponse:
        place = self._configured or pb.ConfigureRequest()
        return pb.GetStageInfoResponse(
            replica_id=place.replica_id,
            generation=place.generation,
            pipeline_rank=place.pipeline_rank,
            tensor_rank=place.tensor_rank,
            steps=self._runner.steps if self._runner else 0,
            device=self._stage.device_name if self._stage else "",
            forerun_version=FORERUN_VERSION,
            vllm_version=vllm_version(),
        )

    async def close(self) -> None:
        """Ends what is open and frees the model; bounded, even while a step or a rendezvous hangs."""
        self._inbox.lose("this stage is stopping")
        if self._length_client is not None:
            await self._length_client.close()
        if self._sender is not None:
            await self._sender.close(_SENDER_CLOSE_S)
        try:
            async with asyncio.timeout(_MODEL_CLOSE_S):
                if self._spans is not None:
                    await self._on_model_thread(self._spans.close)
                if self._stage is not None:
                    await self._on_model_thread(self._stage.shutdown)
        except TimeoutError:
            _log.warning("model_thread_hangs", after_s=_MODEL_CLOSE_S)
        self._model_thread.shutdown(wait=False, cancel_futures=True)

    @property
    def _generation(self) -> int:
        return self._configured.generation if self._configured else 0

    def _adopt(self, request: pb.ConfigureRequest, stage: Stage) -> None:
        self._stage = stage
        self._spans = StageSpans(self._tracer, request.pipeline_rank, request.tensor_rank)
        if request.next_stage_address:
            channel = aio_channel(
                request.next_stage_address,
                self._config.peer_tls,
                max_message_bytes=self._config.server.max_message_bytes,
                allow_plaintext=self._config.peer_allow_plaintext,
            )
            self._sender = ActivationSender(channel)
        self._runner = StepRunner(
            stage,
            request.generation,
            self._inbox,
            self._sender.send if self._sender else _send_nowhere,
            self._metrics,
            self._spans,
            self._config.activation_timeout_s,
        )
        _log.info("configured", replica=request.replica_id, rank=stage.place.rank, generation=request.generation)

    async def _read_plans(
        self,
        runner: StepRunner,
        plans: AsyncIterator[pb.ExecuteRequest],
    ) -> None:
        sender = self._sender
        try:
            async for plan in plans:
                reply = self._on_model_thread(runner.run, plan)
                if sender is not None:
                    reply.add_done_callback(lambda _: sender.flush())
                self._replies.put_nowait(reply)
        finally:
            self._replies.put_nowait(None)

    def _connect_predictor(self, stage: Stage, request: pb.ConfigureRequest) -> None:
        """On the one rank whose states are read."""
        if not stage.target_fingerprint or stage.place.tensor_rank:
            return
        channel = aio_channel(
            request.predictor_address,
            self._config.peer_tls,
            max_message_bytes=self._config.server.max_message_bytes,
            allow_plaintext=self._config.peer_allow_plaintext,
        )
        self._length_client = LengthClient(
            channel, stage.target_fingerprint, stage.place.predictor_layer, self._metrics, self._reply_lengths
        )
        if self._runner is not None:
            self._runner.predict = self._length_client.ask

    def _reply_lengths(self, lengths: pb.RemainingLengths) -> None:
        reply: asyncio.Future[pb.ExecuteResponse | None] = asyncio.get_running_loop().create_future()
        reply.set_result(pb.ExecuteResponse(generation=self._generation, remaining_lengths=lengths))
        self._replies.put_nowait(reply)

    def _on_model_thread(self, function: Callable[..., T], *arguments: Any) -> asyncio.Future[T]:
        return asyncio.get_running_loop().run_in_executor(self._model_thread, function, *arguments)


async def _refuse(context: _Context, why: str) -> NoReturn:
    await context.abort(grpc.StatusCode.FAILED_PRECONDITION, why)
    raise AssertionError("abort always raises")


def _differing_versions(request: pb.ConfigureRequest) -> str:
    """What differs between the scheduler and this stage; empty when nothing does."""
    pairs = {
        "protocol_version": (request.protocol_version, STAGE_PROTOCOL_VERSION),
        "forerun_version": (request.forerun_version, FORERUN_VERSION),
        "vllm_version": (request.vllm_version, vllm_version()),
    }
    return "; ".join(
        f"{name}: scheduler {theirs}, stage {ours}" for name, (theirs, ours) in pairs.items() if theirs != ours
    )


def _with_free_port(address: str) -> str:
    """``address``, its port replaced by a free one where it is 0. Another process may take that; loading then fails."""
    host, port = split_address(address)
    if port:
        return address
    with socket.socket() as probe:
        probe.bind(("", 0))
        return join_address(host, probe.getsockname()[1])


def _send_nowhere(message: pb.PushActivationsRequest, *, at_once: bool) -> None:  # noqa: ARG001  as a sender's
    raise RuntimeError(f"the last stage has no next stage to send step {message.step} to")
