"""Asks the processes of a system how they are; every question is bounded, and no answer is an answer too."""

from dataclasses import dataclass

import grpc.aio
import psutil
from forerun.inference.v1 import service_pb2 as inference_pb2
from forerun.inference.v1 import service_pb2_grpc as inference_pb2_grpc
from forerun.stage.v1 import service_pb2 as stage_pb2
from forerun.stage.v1 import service_pb2_grpc as stage_pb2_grpc

from services.cli.connection import Connection
from services.cli.readiness import SERVING, health_of, redis_health
from services.cli.replica_truth import ANSWER_TIMEOUT_S, replica_info
from services.cli.run_dir import UnitState
from services.cli.units import UnitKind
from services.common.config import ClientTlsConfig
from services.common.convert import replica_state_from_proto
from services.common.ledger import LedgerConfig
from services.common.rpc import aio_channel


@dataclass(frozen=True, slots=True)
class UnitView:
    """One process."""

    name: str
    health: str
    """SERVING, NOT_SERVING, or the status of a call that failed."""
    address: str
    pid: int
    memory_bytes: int
    """Resident, with its children; 0 when it is gone."""
    details: str


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """One replica as the router sees it."""

    replica_id: str
    address: str
    state: str
    total_blocks: int
    used_blocks: int
    reserved_blocks: int
    running_requests: int
    waiting_requests: int
    in_flight_requests: int
    """Of this router."""
    pipeline_stages: int
    tensor_parallel_ranks: int


@dataclass(frozen=True, slots=True)
class RouterView:
    """What a router says."""

    address: str
    problem: str
    """Why it says nothing; empty when it answers."""
    ledger_reachable: bool
    replicas: tuple[ReplicaView, ...]

    @property
    def is_well(self) -> bool:
        """It answers and all of its replicas serve."""
        return not self.problem and all(replica.state == "serving" for replica in self.replicas)


async def view_router(connection: Connection) -> RouterView:
    """Asks for the router's replicas."""
    async with aio_channel(connection.address, connection.tls, keepalive=False) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        try:
            answer = await stub.ListReplicas(
                inference_pb2.ListReplicasRequest(), timeout=ANSWER_TIMEOUT_S, metadata=connection.metadata
            )
        except grpc.aio.AioRpcError as error:
            return RouterView(connection.address, f"{error.code().name}: {error.details()}", False, ())
    replicas = tuple(_replica(replica) for replica in answer.replicas)
    return RouterView(connection.address, "", answer.ledger_reachable, replicas)


async def view_unit(unit: UnitState, tls: ClientTlsConfig | None, ledger: LedgerConfig) -> UnitView:
    """Asks one process."""
    if unit.kind is UnitKind.REDIS:
        health, details = await redis_health(unit.address, ledger), ""
    else:
        health = await health_of(unit.address, tls)
        details = await _details(unit, tls) if health == SERVING else ""
    return UnitView(unit.name, health, unit.address, unit.pid, _memory(unit.pid), details)


async def _details(unit: UnitState, tls: ClientTlsConfig | None) -> str:
    try:
        if unit.kind is UnitKind.STAGE:
            return await _stage_details(unit.address, tls)
        if unit.kind is UnitKind.SCHEDULER:
            info = await replica_info(unit.address, tls)
            return f"{info.state}, {info.running_requests} running, {info.waiting_requests} waiting"
    except grpc.aio.AioRpcError as error:
        return error.code().name
    return ""


async def _stage_details(address: str, tls: ClientTlsConfig | None) -> str:
    async with aio_channel(address, tls, keepalive=False, allow_plaintext=True) as channel:
        stub = stage_pb2_grpc.StageServiceStub(channel)
        info = await stub.GetStageInfo(stage_pb2.GetStageInfoRequest(), timeout=ANSWER_TIMEOUT_S)
    return f"{info.device}, {info.steps} steps"


def _replica(replica: inference_pb2.Replica) -> ReplicaView:
    return ReplicaView(
        replica_id=replica.replica_id,
        address=replica.address,
        state=replica_state_from_proto(replica.state).value,
        total_blocks=replica.total_blocks,
        used_blocks=replica.total_blocks - replica.free_blocks,
        reserved_blocks=replica.reserved_blocks,
        running_requests=replica.running_requests,
        waiting_requests=replica.waiting_requests,
        in_flight_requests=replica.in_flight_requests,
        pipeline_stages=replica.pipeline_stages,
        tensor_parallel_ranks=replica.tensor_parallel_ranks,
    )


def _memory(pid: int) -> int:
    """A shared page counts in every process that maps it."""
    try:
        process = psutil.Process(pid)
        return sum(part.memory_info().rss for part in (process, *process.children(recursive=True)))
    except psutil.NoSuchProcess:
        return 0
