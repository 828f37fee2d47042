"""The index of cached prefixes, against a real Redis that is emptied, filled up and hung."""

import asyncio
import random
import time

import pytest
import redis

from services.common.ledger import LedgerView, LedgerWriter
from services.common.ledger import replica_prefixes as limits
from tests.integration.ledger_support import eventually, quick, row_that, running_view, running_writer, totals
from tests.support.redis_server import RedisServer


@pytest.fixture
def clean_url(shared_redis_server: RedisServer) -> str:
    """A Redis without any keys."""
    redis.Redis.from_url(shared_redis_server.url).flushall()
    return shared_redis_server.url


def keys(url: str) -> int:
    return sum(1 for _ in redis.Redis.from_url(url).scan_iter("*:prefix:*"))


async def holders_become(view: LedgerView, names: list[str], expected: dict[str, int]) -> None:
    deadline = time.monotonic() + 3
    while (found := await view.prefix_holders(names)) != expected:
        assert time.monotonic() < deadline, f"still {found}"
        await asyncio.sleep(0.02)


def publish(writer: LedgerWriter) -> None:
    writer.publish(totals(100))


async def test_the_longest_prefix_of_each_replica_is_found(clean_url: str) -> None:
    config = quick(clean_url)
    with running_writer(config) as first, running_writer(config, replica_id="r1") as second:
        for writer, names in ((first, ["a", "b", "c"]), (second, ["a"])):
            writer.prefixes(names, [])
            publish(writer)
        async with running_view(config) as view:
            await holders_become(view, ["a", "b", "c", "d"], {"r0": 3, "r1": 1})
            first.prefixes([], ["c"])
            publish(first)
            await holders_become(view, ["a", "b", "c", "d"], {"r0": 2, "r1": 1})
            assert await view.prefix_holders(["other"]) == {}
            assert await view.prefix_holders([]) == {}
    async with running_view(config) as view:
        assert await view.prefix_holders(["a"]) == {}, "both have left"


async def test_a_restarted_replica_has_nothing_of_what_it_had(clean_url: str) -> None:
    config = quick(clean_url)
    with running_writer(config, generation=1) as writer:
        writer.prefixes(["a", "b"], [])
        publish(writer)
        async with running_view(config) as view:
            await holders_become(view, ["a", "b"], {"r0": 2})
            with running_writer(config, generation=2) as again:
                again.prefixes(["a"], [])
                publish(again)
                await holders_become(view, ["a", "b"], {"r0": 1})
                # The left-over process changes nothing any more.
                writer.prefixes(["c"], ["a"])
                publish(writer)
                await asyncio.sleep(0.2)
                assert await view.prefix_holders(["a", "b", "c"]) == {"r0": 1}


async def test_the_index_comes_back_after_redis_lost_it(clean_url: str) -> None:
    config = quick(clean_url)
    with running_writer(config) as writer:
        writer.prefixes(["a", "b"], [])
        publish(writer)
        async with running_view(config) as view:
            await holders_become(view, ["a", "b"], {"r0": 2})
            redis.Redis.from_url(clean_url).flushall()
            await holders_become(view, ["a", "b"], {"r0": 2})


async def test_names_are_renewed_while_they_are_cached_and_expire_afterwards(clean_url: str) -> None:
    config = quick(clean_url, prefix_life_s=1.0)
    with running_writer(config) as writer:
        writer.prefixes(["a"], [])
        publish(writer)
        async with running_view(config) as view:
            await holders_become(view, ["a"], {"r0": 1})
            await asyncio.sleep(2.0)
            assert await view.prefix_holders(["a"]) == {"r0": 1}
    await eventually(lambda: keys(clean_url) == 0, timeout_s=3)


async def test_memory_is_bounded_and_the_newest_stay(clean_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "NAMES_A_WRITE", 64)
    config = quick(clean_url, prefix_blocks=100)
    with running_writer(config) as writer:
        for start in range(0, 2000, 50):
            writer.prefixes([str(number) for number in range(start, start + 50)], [])
            publish(writer)
            await asyncio.sleep(0.005)
        async with running_view(config) as view:
            await holders_become(view, ["1999"], {"r0": 1})
            await eventually(lambda: keys(clean_url) == 100, timeout_s=5)
            assert await view.prefix_holders(["1800"]) == {}
    assert keys(clean_url) <= 100


async def test_random_changes_end_in_what_is_cached(clean_url: str) -> None:
    rng = random.Random(1)
    config = quick(clean_url, prefix_blocks=1000)
    cached: dict[str, set[str]] = {"r0": set(), "r1": set()}
    with running_writer(config) as first, running_writer(config, replica_id="r1") as second:
        for turn in range(300):
            for writer, name in ((first, "r0"), (second, "r1")):
                stored = {str(rng.randrange(60)) for _ in range(rng.randrange(4))}
                removed = {each for each in cached[name] - stored if rng.random() < 0.2}
                cached[name] = (cached[name] | stored) - removed
                writer.prefixes(stored, removed)
                publish(writer)
            if turn == 150:
                redis.Redis.from_url(clean_url).flushall()
            await asyncio.sleep(0.003)
        async with running_view(config) as view:
            for number in range(60):
                expected = {name: 1 for name, names in cached.items() if str(number) in names}
                await holders_become(view, [str(number)], expected)


async def test_what_a_crowd_has_tells_nobody_apart(clean_url: str) -> None:
    config = quick(clean_url)
    client = redis.Redis.from_url(clean_url)
    for number in range(100):
        client.hset("forerun:{default}:prefix:common", f"r{number}", "1")
    with running_writer(config) as writer:
        writer.prefixes(["common", "rare"], [])
        publish(writer)
        async with running_view(config) as view:
            await holders_become(view, ["common", "rare"], {"r0": 2})
            assert await view.prefix_holders(["common"]) == {}


async def test_a_redis_that_hangs_costs_a_look_up_its_time_limit_once(redis_server: RedisServer) -> None:
    config = quick(redis_server.url, command_timeout_s=0.2)
    with running_writer(config) as writer:
        writer.prefixes(["a"], [])
        publish(writer)
        await row_that(config, lambda row: True)
        async with running_view(config) as view:
            await holders_become(view, ["a"], {"r0": 1})
            redis_server.pause()
            try:
                began = time.monotonic()
                for _ in range(20):
                    assert await view.prefix_holders(["a"]) == {}
                assert time.monotonic() - began < 1.0
            finally:
                redis_server.resume()
            await holders_become(view, ["a"], {"r0": 1})
