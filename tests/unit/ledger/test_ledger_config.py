"""The ledger's configuration refuses what cannot work and hides what is secret."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from services.common.ledger import LedgerConfig


def test_without_url_there_is_no_ledger() -> None:
    assert not LedgerConfig().enabled
    assert LedgerConfig(url="redis://h:1/0").enabled


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"url": "http://h:1"}, "must start with redis://"),
        ({"url": "redis://"}, "names no host"),
        ({"url": "unix://"}, "names no socket"),
        ({"url": "redis://h:port/0"}, "Port could not be cast"),
        ({"url": "redis://h:1/zero"}, "the number of a database"),
        ({"url": "rediss://h/0?ssl_cert_reqs=none"}, "takes no options but db, and has ssl_cert_reqs"),
        ({"url": "redis://h/0?socket_timeout="}, "takes no options but db"),
        ({"url": "redis://h/0", "fleet": "a}b"}, "String should match pattern"),
        ({"url": "redis://h/0", "lease_s": 1.0, "flush_interval_s": 0.5}, "a third of lease_s"),
        ({"url": "redis://h/0", "tls_ca_file": "/ca.pem"}, "needs a rediss:// url"),
        ({"url": "redis://h/0", "tls_cert_file": "/c.pem", "tls_key_file": "/k.pem"}, "needs a rediss:// url"),
        ({"url": "rediss://h/0", "tls_cert_file": "/c.pem"}, "belong together"),
        ({"url": "redis://:secret@h/0", "password_file": "/p"}, "keep the file only"),
        ({"url": "redis+sentinel://h/0", "tls_ca_file": "/ca.pem"}, "needs a rediss:// url"),
        ({"url": "redis+sentinel://:secret@h/0", "password_file": "/p"}, "keep the file only"),
        ({"url": "redis://h/0", "lease_s": float("nan")}, "finite number"),
        ({"url": "redis://h/0", "retries": 3}, "Extra inputs are not permitted"),
    ],
)
def test_refuses_what_cannot_work(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        LedgerConfig.model_validate(fields)


def test_messages_do_not_show_the_password() -> None:
    config = LedgerConfig(url="rediss://user:secret@redis.example:6380/2", tls_ca_file=Path("/ca.pem"))
    assert "secret" not in repr(config)
    assert config.place == "rediss://redis.example:6380/2"
    assert LedgerConfig(url="redis+sentinel://u:secret@a:1,b:2/p").place == "redis+sentinel://a:1,b:2/p"


def test_survives_the_way_through_json() -> None:
    config = LedgerConfig(url="rediss://u:p@h/0", tls_ca_file=Path("/ca.pem"), lease_s=2)
    assert LedgerConfig.model_validate(config.model_dump(mode="json")) == config
