"""Redis' memory stays flat however many requests have gone through the ledger."""

import pytest
import redis

from services.common.ledger import EngineState, scripts
from services.common.ledger.replica_entry import ReplicaEntry
from services.common.ledger.replica_prefixes import ReplicaPrefixes
from services.common.ledger.schema import FleetKeys
from services.common.ledger.types import ReplicaTotals
from services.common.prefix_hash import next_hash, root_hash
from tests.integration.ledger_support import quick
from tests.support.redis_server import RedisServer

REQUESTS, AT_ONCE = 100_000, 500
WARM_UP = 20_000
BLOCKS = 4 * AT_ONCE


class Traffic:
    """A replica and a router, by the scripts that they run, many requests in one go."""

    def __init__(self, url: str) -> None:
        config = quick(url, lease_s=60.0, prefix_blocks=2048)
        self.client = redis.Redis.from_url(url, decode_responses=True)
        self._entry = ReplicaEntry(self.client, config, "r0", "127.0.0.1:1", 1)
        self._prefixes = ReplicaPrefixes(self.client, config, "r0", 1)
        self._keys = FleetKeys(config.fleet).replica("r0").as_list()
        self._reserve = self.client.register_script(scripts.load("reserve"))
        self._name = root_hash(16)
        self._write(0, {}, [])

    def serve(self, first: int) -> None:
        """Reserves, admits and ends ``AT_ONCE`` requests, and names two blocks of each."""
        names = [f"request-{number:08}" for number in range(first, first + AT_ONCE)]
        pipeline = self.client.pipeline(transaction=False)
        for name in names:
            self._reserve(keys=self._keys, args=[name, 2, 60_000], client=pipeline)
        assert all(reply[0] == "GRANTED" for reply in pipeline.execute())
        self._write(2 * AT_ONCE, dict.fromkeys(names, 2), names)
        self._write(0, {}, [])
        for number in range(2 * AT_ONCE):
            self._name = next_hash(self._name, [number])
            self._prefixes.change([self._name], [])
        while self._prefixes.is_behind:
            self._prefixes.write()

    def memory(self) -> int:
        return int(self.client.info("memory")["used_memory_dataset"])

    def _write(self, used: int, held: dict[str, int], settled: list[str]) -> None:
        totals = ReplicaTotals(total=BLOCKS, free=BLOCKS - used, held=used, running=len(held))
        self._entry.write(EngineState(totals, held), settled)


@pytest.mark.timeout(300)
def test_a_hundred_thousand_requests_leave_it_flat(redis_server: RedisServer) -> None:
    traffic = Traffic(redis_server.url)
    for first in range(0, WARM_UP, AT_ONCE):
        traffic.serve(first)
    before = traffic.memory()
    for first in range(WARM_UP, REQUESTS, AT_ONCE):
        traffic.serve(first)
    # Tables and buffers breathe; a byte a request would be a leak.
    assert traffic.memory() < before + (REQUESTS - WARM_UP)
    keys = list(traffic.client.scan_iter("*"))
    assert len([key for key in keys if ":prefix:" not in key]) <= 6
    assert len(keys) <= 6 + 2048
