"""The ledger's url."""

import pytest

from services.common.ledger.address import RedisAddress, parse_address


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("redis://h:1/2", RedisAddress("server", tls=False)),
        ("rediss://u:p%40@h", RedisAddress("server", tls=True, username="u", password="p@")),
        ("unix:///run/redis.sock?db=3", RedisAddress("server", tls=False)),
        (
            "redis+sentinel://a,b:7/primary",
            RedisAddress("sentinel", tls=False, hosts=(("a", 26379), ("b", 7)), service="primary"),
        ),
        (
            "rediss+sentinel://:p@a:7/my.primary/3",
            RedisAddress("sentinel", tls=True, hosts=(("a", 7),), service="my.primary", database=3, password="p"),
        ),
        ("redis+cluster://a:7,[::1]:8", RedisAddress("cluster", tls=False, hosts=(("a", 7), ("::1", 8)))),
        ("rediss+cluster://u@a/", RedisAddress("cluster", tls=True, hosts=(("a", 6379),), username="u")),
    ],
)
def test_what_it_says(url: str, address: RedisAddress) -> None:
    assert parse_address(url) == address


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("sentinel://h/p", "must start with redis://"),
        ("redis+sentinel://h:1", "names no primary; write redis.sentinel://host:port,host:port/PRIMARY"),
        ("redis+sentinel://h:1/p/x", "names no primary"),
        ("redis+sentinel:///p", "names no host"),
        ("redis+sentinel://a,,b/p", "names no host"),
        ("redis+cluster://a:0", "names port 0"),
        ("redis+cluster://a:7/1", "a cluster has one database"),
        ("redis+cluster://a:7?db=1", "takes no options but db, and has db"),
        ("redis+sentinel://a:99999/p", "port"),
    ],
)
def test_what_it_refuses(url: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_address(url)
