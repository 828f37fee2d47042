"""Whether a process is ready: Redis answers, every other says SERVING in ``grpc.health.v1``."""

import asyncio

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from redis.asyncio import Redis
from redis.exceptions import RedisError

from services.cli.units import UnitKind
from services.common.address import split_address
from services.common.config import ClientTlsConfig
from services.common.ledger.config import LedgerConfig
from services.common.rpc import aio_channel

POLL_S = 0.2
ANSWER_TIMEOUT_S = 2.0


async def wait_ready(kind: UnitKind, address: str, tls: ClientTlsConfig | None, ledger: LedgerConfig) -> None:
    """Returns when the process is ready; bounded by the caller."""
    while True:
        if await is_ready(kind, address, tls, ledger):
            return
        await asyncio.sleep(POLL_S)


async def is_ready(kind: UnitKind, address: str, tls: ClientTlsConfig | None, ledger: LedgerConfig) -> bool:
    """Asks once."""
    if not await _accepts(address):
        return False
    if kind is UnitKind.REDIS:
        return await _redis_answers(address, ledger)
    return await health_of(address, tls) == "SERVING"


async def health_of(address: str, tls: ClientTlsConfig | None) -> str:
    """SERVING, NOT_SERVING, or why there is no answer."""
    async with aio_channel(address, tls, keepalive=False, allow_plaintext=True) as channel:
        try:
            answer = await health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(), timeout=ANSWER_TIMEOUT_S
            )
        except grpc.aio.AioRpcError as error:
            return error.code().name
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))


async def _accepts(address: str) -> bool:
    """Whether something listens; cheaper than a gRPC channel that backs off."""
    host, port = split_address(address)
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(host, port), ANSWER_TIMEOUT_S)
    except (OSError, TimeoutError):
        return False
    writer.close()
    return True


async def _redis_answers(address: str, ledger: LedgerConfig) -> bool:
    host, port = split_address(address)
    password = ledger.password_file.read_text().splitlines()[0] if ledger.password_file else None
    client = Redis(host=host, port=port, password=password, socket_timeout=ANSWER_TIMEOUT_S)
    try:
        return bool(await client.ping())
    except (RedisError, OSError):
        return False
    finally:
        await client.aclose()
