"""What a scheduler says of its engine, for status and for the ledger check."""

import asyncio
from collections.abc import Sequence

import grpc.aio
import httpx
from forerun.scheduler.v1 import service_pb2, service_pb2_grpc
from prometheus_client.parser import text_string_to_metric_families

from services.cli.errors import EXIT_FAILED, CliError
from services.cli.run_dir import RunState, UnitState
from services.cli.units import UnitKind
from services.common.config import ClientTlsConfig
from services.common.convert import replica_info_from_proto
from services.common.ledger import ReplicaTruth
from services.common.rpc import aio_channel
from services.common.types import ReplicaInfo

ANSWER_TIMEOUT_S = 5.0
FREE_BLOCKS_METRIC = "forerun_scheduler_free_blocks"


async def replica_info(address: str, tls: ClientTlsConfig | None) -> ReplicaInfo:
    """Asks a scheduler. Raises ``grpc.aio.AioRpcError``."""
    async with aio_channel(address, tls, keepalive=False, allow_plaintext=True) as channel:
        stub = service_pb2_grpc.SchedulerServiceStub(channel)
        return replica_info_from_proto(
            await stub.GetReplicaInfo(service_pb2.GetReplicaInfoRequest(), timeout=ANSWER_TIMEOUT_S)
        )


async def read_truths(state: RunState) -> Sequence[ReplicaTruth]:
    """The truth of every scheduler that runs; those that do not answer are absent, as dead replicas should be.

    Raises:
        CliError: a scheduler answers, but its metrics page does not.
    """
    schedulers = [unit for unit in state.units if unit.kind is UnitKind.SCHEDULER]
    truths = await asyncio.gather(*(_truth(unit, state.tls) for unit in schedulers))
    return [truth for truth in truths if truth is not None]


async def _truth(unit: UnitState, tls: ClientTlsConfig | None) -> ReplicaTruth | None:
    try:
        info = await replica_info(unit.address, tls)
    except grpc.aio.AioRpcError:
        return None
    return ReplicaTruth(
        replica_id=info.replica_id,
        generation=info.generation,
        total=info.total_blocks,
        free=await _free_blocks(unit),
        running=info.running_requests,
        waiting=info.waiting_requests,
    )


async def _free_blocks(unit: UnitState) -> int:
    page = f"http://{unit.metrics[0][1]}/metrics"
    try:
        async with httpx.AsyncClient(timeout=ANSWER_TIMEOUT_S, trust_env=False) as client:
            text = (await client.get(page)).raise_for_status().text
    except httpx.HTTPError as error:
        raise CliError(f"{unit.name}: {page} does not answer: {error}", EXIT_FAILED) from error
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == FREE_BLOCKS_METRIC:
                return int(sample.value)
    raise CliError(f"{unit.name}: {page} has no {FREE_BLOCKS_METRIC}", EXIT_FAILED)
