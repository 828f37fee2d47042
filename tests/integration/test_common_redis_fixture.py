"""The Redis that other tests lean on really dies, comes back and pauses."""

import pytest
import redis

from tests.support.redis_server import RedisServer


def test_killed_redis_comes_back_empty_on_the_same_port(redis_server: RedisServer) -> None:
    client = redis.Redis.from_url(redis_server.url, socket_timeout=2)
    client.set("key", "value")
    redis_server.kill()
    with pytest.raises(redis.ConnectionError):
        client.ping()
    redis_server.start()
    assert client.get("key") is None


def test_paused_redis_does_not_answer_and_can_be_killed(redis_server: RedisServer) -> None:
    client = redis.Redis.from_url(redis_server.url, socket_timeout=0.3)
    client.ping()
    redis_server.pause()
    with pytest.raises(redis.TimeoutError):
        client.ping()
    redis_server.resume()
    client.ping()
    redis_server.pause()
    redis_server.kill()
