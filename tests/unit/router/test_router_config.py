"""The router's configuration: what cannot work is refused by name."""

import json
from pathlib import Path
from typing import Any

import pytest

from services.common.config_file import load_config
from services.common.errors import ConfigError
from services.router.config import RouterConfig

REPLICAS = [{"replica_id": "r0", "address": "127.0.0.1:1"}]


def load(tmp_path: Path, **values: Any) -> RouterConfig:
    file = tmp_path / "router.json"
    file.write_text(json.dumps(values))
    return load_config(file, RouterConfig)


def test_one_replica_is_enough(tmp_path: Path) -> None:
    config = load(tmp_path, replicas=REPLICAS)
    assert config.replicas[0].address == "127.0.0.1:1"
    assert config.router_id != load(tmp_path, replicas=REPLICAS).router_id


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "replicas is empty"),
        ({"discover": True}, "ledger.url"),
        ({"replicas": REPLICAS * 2}, "r0 occurs more than once"),
        ({"replicas": [{"replica_id": "bad id", "address": "127.0.0.1:1"}]}, "replica_id"),
        ({"replicas": [{"replica_id": "r0", "address": "nowhere"}]}, "host:port"),
        ({"replicas": REPLICAS, "http_listen": "127.0.0.1:0", "tokenizer": False}, "tokenizer: true"),
        ({"replicas": REPLICAS, "max_concurrent_requests": 0}, "max_concurrent_requests"),
        ({"replicas": REPLICAS, "default_timeout_s": 0}, "default_timeout_s"),
        ({"replicas": REPLICAS, "surprise": 1}, "surprise"),
    ],
)
def test_what_cannot_work_is_named(tmp_path: Path, values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(tmp_path, **values)


def test_keys_do_not_show(tmp_path: Path) -> None:
    config = load(tmp_path, replicas=REPLICAS, api_keys=["very-secret"])
    assert "very-secret" not in repr(config)
    assert "very-secret" not in config.model_dump_json()
