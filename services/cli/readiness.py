"""Whether a process is ready: Redis answers, every other says SERVING in ``grpc.health.v1``."""

import asyncio

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from redis.asyncio import Redis
from redis.exceptions import RedisError

from services.cli.units import Unit, UnitKind
from services.common.address import split_address
from services.common.config import ClientTlsConfig
from services.common.ledger.config import LedgerConfig
from services.common.rpc import aio_channel

POLL_S = 0.2
ANSWER_TIMEOUT_S = 2.0
SERVING = "SERVING"


async def wait_ready(unit: Unit, tls: ClientTlsConfig | None, ledger: LedgerConfig) -> None:
    """Returns when the process is ready; bounded by the caller."""
    while True:
        if await _accepts(unit.address):
            if unit.kind is UnitKind.REDIS:
                health = await redis_health(unit.address, ledger)
            else:
                health = await health_of(unit.address, tls, unit.health_service)
            if health == SERVING:
                return
        await asyncio.sleep(POLL_S)


async def health_of(address: str, tls: ClientTlsConfig | None, service: str = "") -> str:
    """SERVING, NOT_SERVING, or the status code of a call that failed."""
    async with aio_channel(address, tls, keepalive=False, allow_plaintext=True) as channel:
        try:
            answer = await health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(service=service), timeout=ANSWER_TIMEOUT_S
            )
        except grpc.aio.AioRpcError as error:
            return error.code().name
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))


async def redis_health(address: str, ledger: LedgerConfig) -> str:
    """SERVING when it answers PING, else why not."""
    host, port = split_address(address)
    password = ledger.password_file.read_text().splitlines()[0] if ledger.password_file else None
    client = Redis(host=host, port=port, password=password, socket_timeout=ANSWER_TIMEOUT_S)
    try:
        await client.ping()
    except (RedisError, OSError) as error:
        return type(error).__name__
    finally:
        await client.aclose()
    return SERVING


async def _accepts(address: str) -> bool:
    """Whether something listens; cheaper than a gRPC channel that backs off."""
    host, port = split_address(address)
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(host, port), ANSWER_TIMEOUT_S)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True
