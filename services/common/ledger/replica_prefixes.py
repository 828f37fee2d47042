"""The prefixes that a replica has cached, from the side that writes them into the ledger's index.

An index entry is a hint: one that is missing costs a cache hit, one that is out of date costs a detour. So writes are
bounded, come late, and are given up without harm; only names of another start of the replica must never count, which
readers tell by the generation in each entry.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable

from services.common.ledger import scripts
from services.common.ledger.config import LedgerConfig
from services.common.ledger.connection import AnyRedis
from services.common.ledger.schema import FleetKeys

NAMES_A_CALL = 256
NAMES_A_WRITE = 2048
"""Names written in one go; the rest follow with the next write."""
MOST_TO_REMOVE = 65_536
REFRESHES_A_LIFE = 3
"""Entries are written again so often while they live, or they would expire."""


class ReplicaPrefixes:
    """Not thread-safe. ``write`` raises ``LEDGER_ERRORS``; what it did not bring over stays to be written."""

    def __init__(
        self,
        client: AnyRedis,
        config: LedgerConfig,
        replica_id: str,
        generation: int,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fleet = FleetKeys(config.fleet)
        self._keys = self._fleet.replica(replica_id).as_list()
        self._identity = (replica_id, generation)
        self._most = config.prefix_blocks
        self._life_s = config.prefix_life_s
        self._clock = clock
        self._add = client.register_script(scripts.load("prefix_add"))
        self._remove = client.register_script(scripts.load("prefix_remove"))
        self._cached: OrderedDict[str, None] = OrderedDict()
        """The newest last."""
        self._to_add: dict[str, None] = {}
        self._to_remove: dict[str, None] = {}
        self._refreshed_at = clock()

    def change(self, stored: Iterable[str], removed: Iterable[str]) -> None:
        """What came into the cache and what left it. Beyond the limit, the oldest names leave the index."""
        for name in stored:
            self._cached[name] = None
            self._cached.move_to_end(name)
            self._to_add[name] = None
            self._to_remove.pop(name, None)
        for name in removed:
            self._drop(name)
        while len(self._cached) > self._most:
            self._drop(next(iter(self._cached)))
        # While Redis is away they pile up; what is forgotten here expires there.
        while len(self._to_remove) > MOST_TO_REMOVE:
            del self._to_remove[next(iter(self._to_remove))]

    def lost(self) -> None:
        """Redis may have lost what was written: all of it is to be written again."""
        self._to_add = dict.fromkeys(self._cached)

    def write(self) -> None:
        """Writes some of what is to be written, in the order in which it came."""
        now = self._clock()
        if now - self._refreshed_at >= self._life_s / REFRESHES_A_LIFE:
            self._refreshed_at = now
            self.lost()
        room = NAMES_A_WRITE
        while room > 0 and (names := _first(self._to_remove, min(room, NAMES_A_CALL))):
            self._remove(keys=self._keys_of(names), args=self._identity)
            room -= self._written(self._to_remove, names)
        while room > 0 and (names := _first(self._to_add, min(room, NAMES_A_CALL))):
            self._add(keys=self._keys_of(names), args=[*self._identity, int(self._life_s * 1000)])
            room -= self._written(self._to_add, names)

    @property
    def is_behind(self) -> bool:
        """Whether something is still to be written."""
        return bool(self._to_add or self._to_remove)

    def _drop(self, name: str) -> None:
        if name in self._cached:
            del self._cached[name]
            self._to_remove[name] = None
        self._to_add.pop(name, None)

    def _keys_of(self, names: Iterable[str]) -> list[str]:
        return [*self._keys, *(self._fleet.prefix_of(name) for name in names)]

    @staticmethod
    def _written(pending: dict[str, None], names: list[str]) -> int:
        for name in names:
            del pending[name]
        return len(names)


def _first(names: dict[str, None], count: int) -> list[str]:
    return [name for name, _ in zip(names, range(count), strict=False)]
