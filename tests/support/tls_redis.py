"""Redis behind TLS with client certificates, for builds of it that have none: ``python -m tests.support.tls_redis``.

Takes the files and the port of deploy/compose/config/redis.conf. Redis itself listens on loopback.
"""

import asyncio
import sys
from pathlib import Path

from services.cli.local_redis import find_redis_server
from tests.support.tls_front import mutual_tls, start_tls_front

SECRETS = Path("/run/secrets")
PORT, INNER_PORT = 6379, 16379


async def _main() -> None:
    context = mutual_tls(SECRETS / "ca.pem", SECRETS / "forerun.pem", SECRETS / "forerun.key")
    redis = await asyncio.create_subprocess_exec(
        find_redis_server(None), "--port", str(INNER_PORT), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no",
        "--aclfile", str(SECRETS / "users.acl"),
    )  # fmt: skip
    server = await start_tls_front("0.0.0.0", PORT, context, INNER_PORT)
    async with server:
        sys.exit(await redis.wait())


if __name__ == "__main__":
    asyncio.run(_main())
