"""Redis behind TLS with client certificates, for builds of it that have none: ``python -m tests.support.tls_redis``.

Takes the files and the port of deploy/compose/config/redis.conf. Redis itself listens on loopback.
"""

import asyncio
import contextlib
import ssl
import sys
from pathlib import Path

from services.cli.local_redis import find_redis_server

SECRETS = Path("/run/secrets")
PORT, INNER_PORT = 6379, 16379


async def _main() -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(SECRETS / "ca.pem"))
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(SECRETS / "forerun.pem", SECRETS / "forerun.key")
    redis = await asyncio.create_subprocess_exec(
        find_redis_server(None), "--port", str(INNER_PORT), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no",
        "--aclfile", str(SECRETS / "users.acl"),
    )  # fmt: skip
    server = await asyncio.start_server(_forward, "0.0.0.0", PORT, ssl=context)
    async with server:
        sys.exit(await redis.wait())


async def _forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", INNER_PORT)
    await asyncio.gather(_copy(reader, inner_writer), _copy(inner_reader, writer))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


if __name__ == "__main__":
    asyncio.run(_main())
