"""``forerun doctor`` before a real Redis: asleep, of another password, and well."""

from services.cli.doctor.finding import Finding, Level
from services.cli.doctor.system_checks import check_redis
from services.cli.local_config import LocalConfig
from tests.support.redis_server import RedisServer


def look(url: str) -> list[Finding]:
    ledger = {"url": url, "connect_timeout_s": 0.3, "command_timeout_s": 0.3}
    return list(check_redis(LocalConfig.model_validate({"model": "x", "ledger": ledger})))


def test_redis_and_its_clock(redis_server: RedisServer) -> None:
    answers, clock = look(redis_server.url)
    assert answers.level in (Level.OK, Level.WARNING)
    assert (clock.check, clock.level) == ("clock", Level.OK)
    redis_server.pause()
    (asleep,) = look(redis_server.url)
    assert (asleep.check, asleep.level) == ("Redis", Level.FAILED)
    redis_server.resume()
    redis_server.kill()
    (gone,) = look(redis_server.url)
    assert gone.level is Level.FAILED
    assert "ledger.url" in gone.fix
