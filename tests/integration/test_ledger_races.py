"""Ten thousand reservations that race from several processes never promise a block twice."""

import asyncio
import json
import subprocess
import sys

import redis

from tests.integration.ledger_support import quick, row_that, running_writer, totals
from tests.support.redis_server import RedisServer

PROCESSES, TASKS, ROUNDS = 2, 40, 125
TOTAL = 500

RACER_PROGRAM = """
import asyncio, json, random, sys
from services.common.ledger import LedgerUnavailableError
from tests.integration.ledger_support import quick, running_view
url, name, tasks, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
counts = {"granted": 0, "refused": 0, "unavailable": 0, "over": 0}
async def race(view, task, rng):
    for index in range(rounds):
        id = f"{name}-{task}-{index}"
        try:
            granted = await view.reserve("r0", id, rng.randint(1, 40))
        except LedgerUnavailableError:
            counts["unavailable"] += 1
            continue
        counts["granted" if granted else "refused"] += 1
        replica = view.replicas["r0"]
        counts["over"] += replica.reserved > replica.free
        if granted:
            await asyncio.sleep(rng.random() / 200)
            await view.release(id)
async def main():
    async with running_view(quick(url, lease_s=30, command_timeout_s=10, refresh_interval_s=0.05)) as view:
        await asyncio.gather(*(race(view, task, random.Random(f"{name}{task}")) for task in range(tasks)))
    print(json.dumps(counts))
asyncio.run(main())
"""


def start_racer(url: str, name: str) -> subprocess.Popen[str]:
    """A router process that reserves and releases, then prints what came of it."""
    command = [sys.executable, "-c", RACER_PROGRAM, url, name, str(TASKS), str(ROUNDS)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


async def test_racing_reservations_never_over_commit(shared_redis_server: RedisServer) -> None:
    url = shared_redis_server.url
    redis.Redis.from_url(url).flushall()
    config = quick(url, lease_s=30)
    with running_writer(config) as writer:
        writer.publish(totals(TOTAL))
        await row_that(config, lambda row: True)
        racers = [start_racer(url, f"p{number}") for number in range(PROCESSES)]
        try:
            outputs = await asyncio.gather(*(asyncio.to_thread(racer.communicate) for racer in racers))
        finally:
            for racer in racers:
                racer.kill()
                racer.wait()
        counts = [json.loads(output) for output, _ in outputs]
        assert sum(count["granted"] + count["refused"] for count in counts) == PROCESSES * TASKS * ROUNDS == 10_000
        assert all(count["over"] == 0 and count["unavailable"] == 0 for count in counts), counts
        assert all(count["granted"] and count["refused"] for count in counts), counts
        row = await row_that(config, lambda row: True)
        assert row.replica.reserved == 0
        assert row.reservations == ()
