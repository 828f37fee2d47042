"""From the file to the processes."""

import json
from pathlib import Path
from typing import Any

import pytest

from services.cli.launch_plan import Machine, plan_launch
from services.cli.local_config import LocalConfig
from services.cli.ports import PortPicker
from services.cli.run_dir import RunDir
from services.cli.units import LaunchPlan, UnitKind
from services.common.config_file import load_config
from services.common.config_yaml import read_yaml
from services.common.errors import ConfigError
from services.predictor.config import PredictorConfig
from services.router.config import RouterConfig
from services.scheduler.config import SchedulerConfig
from services.workers.config import StageConfig
from tests.support.small_predictor import write_random_predictor

TWO_REPLICAS = """
model: smollm2-135m
router:
  api_keys: [secret-key]
  server: {listen: "127.0.0.1:0"}
  max_concurrent_requests: 7
replicas:
  - pipeline_stages: 2
    tensor_parallel: 2
    engine_args: {max_model_len: 64}
    stage: {load_timeout_s: 9}
  - replica_id: other
    server: {drain_timeout_s: 3}
drain_timeout_s: 11
"""


def plan(tmp_path: Path, text: str, *, on_cuda: bool = False) -> LaunchPlan:
    path = tmp_path / "local.yaml"
    path.write_text(text)
    ports = PortPicker()
    machine = Machine("/models/m", tuple(range(10)), on_cuda)
    try:
        return plan_launch(load_config(path, LocalConfig), read_yaml(path), machine, RunDir(tmp_path / "run"), ports)
    finally:
        ports.release()


def config_of(plan: LaunchPlan, name: str) -> dict[str, Any]:
    return json.loads(next(text for path, text in plan.files.items() if path.stem == name))  # type: ignore[no-any-return]


def test_order_and_wiring(tmp_path: Path) -> None:
    made = plan(tmp_path, TWO_REPLICAS)
    assert [unit.name for unit in made.units] == [
        "redis",
        "replica-0.stage-0.0", "replica-0.stage-0.1", "replica-0.stage-1.0", "replica-0.stage-1.1",
        "replica-0.scheduler", "other.stage-0", "other.scheduler", "router",
    ]  # fmt: skip
    address = {unit.name: unit.address for unit in made.units}
    scheduler = config_of(made, "replica-0.scheduler")
    assert scheduler["stages"] == [
        [address["replica-0.stage-0.0"], address["replica-0.stage-0.1"]],
        [address["replica-0.stage-1.0"], address["replica-0.stage-1.1"]],
    ]
    assert scheduler["model"] == "/models/m"
    assert scheduler["served_model_names"] == ["smollm2-135m"]
    router = config_of(made, "router")
    assert router["replicas"] == [
        {"replica_id": "replica-0", "address": address["replica-0.scheduler"]},
        {"replica_id": "other", "address": address["other.scheduler"]},
    ]
    assert made.replica_ids == ("replica-0", "other")
    assert [unit.kind for unit in made.of_replica("other")] == [UnitKind.STAGE, UnitKind.SCHEDULER]


def test_every_file_is_what_its_service_reads(tmp_path: Path) -> None:
    made = plan(tmp_path, TWO_REPLICAS)
    models = {UnitKind.STAGE: StageConfig, UnitKind.SCHEDULER: SchedulerConfig, UnitKind.ROUTER: RouterConfig}
    for unit in made.units:
        if unit.kind in models:
            models[unit.kind].model_validate(config_of(made, unit.name))
    assert config_of(made, "router")["api_keys"] == ["secret-key"], "masked secrets would open nothing"
    assert config_of(made, "replica-0.stage-1.0")["load_timeout_s"] == 9


def test_ports_are_chosen_and_never_twice(tmp_path: Path) -> None:
    made = plan(tmp_path, TWO_REPLICAS)
    addresses = [address for unit in made.units for address in (unit.address, *dict(unit.metrics).values())]
    assert len(addresses) == len(set(addresses))
    assert not [address for address in addresses if address.endswith(":0")]


def test_cores_are_dealt_over_all_stage_processes(tmp_path: Path) -> None:
    made = plan(tmp_path, TWO_REPLICAS)
    names = [unit.name for unit in made.units if unit.kind is UnitKind.STAGE]
    assert [config_of(made, name)["cores"] for name in names] == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]


def test_devices_on_cuda(tmp_path: Path) -> None:
    made = plan(tmp_path, TWO_REPLICAS, on_cuda=True)
    names = [unit.name for unit in made.units if unit.kind is UnitKind.STAGE]
    assert [config_of(made, name)["device"] for name in names] == [0, 1, 2, 3, 4]
    assert {config_of(made, name)["cores"] is None for name in names} == {True}


def test_drain_times(tmp_path: Path) -> None:
    made = plan(tmp_path, TWO_REPLICAS)
    drains = {unit.name: unit.drain_timeout_s for unit in made.units}
    assert drains["router"] == drains["replica-0.scheduler"] == 11
    assert drains["other.scheduler"] == 3


def test_own_redis_has_a_password_that_only_files_know(tmp_path: Path) -> None:
    made = plan(tmp_path, TWO_REPLICAS)
    password = next(text for path, text in made.files.items() if path.name == "redis-password").strip()
    assert f"requirepass {password}" in next(text for path, text in made.files.items() if path.name == "redis.conf")
    assert made.ledger.url == f"redis://{made.units[0].address}/0"
    assert not [unit for unit in made.units if password in " ".join(unit.command)]


@pytest.mark.parametrize(
    ("ledger", "url"), [("ledger: {url: 'redis://h:1/0'}", "redis://h:1/0"), ("redis: {start: false}", None)]
)
def test_no_own_redis(tmp_path: Path, ledger: str, url: str | None) -> None:
    made = plan(tmp_path, f"model: m\n{ledger}\n")
    assert made.ledger.url == url
    assert not [unit for unit in made.units if unit.kind is UnitKind.REDIS]


def test_traces_go_to_the_run_folder_unless_told_otherwise(tmp_path: Path) -> None:
    assert plan(tmp_path, "model: m\n").traces_dir == tmp_path / "run" / "traces"
    collector = plan(tmp_path, "model: m\ntelemetry: {otlp_endpoint: 'http://127.0.0.1:4317'}\n")
    assert collector.traces_dir is None
    assert collector.otlp_endpoint == "http://127.0.0.1:4317"


def test_tls_of_the_machine_reaches_every_hop(tmp_path: Path) -> None:
    text = """
model: m
tls:
  server: {cert_file: s.pem, key_file: s.key, ca_file: ca.pem}
  client: {ca_file: ca.pem, cert_file: c.pem, key_file: c.key}
"""
    made = plan(tmp_path, text)
    stage, scheduler, router = (
        config_of(made, name) for name in ("replica-0.stage-0", "replica-0.scheduler", "router")
    )
    for config in (stage, scheduler, router):
        assert config["server"]["tls"]["cert_file"] == "s.pem"
    for client in (stage["peer_tls"], scheduler["stage_tls"], router["replica_tls"]):
        assert client["cert_file"] == "c.pem"
    assert made.tls is not None


def test_rules_over_several_fields_name_their_section(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"local\.yaml:2: router: http_listen needs the tokenizer"):
        plan(tmp_path, "model: m\nrouter: {tokenizer: false}\n")
    text = "model: m\nreplicas:\n  - engine: fake\n    fake: {total_blocks: 1}\n"
    with pytest.raises(ConfigError, match=r"local\.yaml:4: replicas\.0\.fake: total_blocks"):
        plan(tmp_path, text)


def test_a_predictor_is_for_replicas_that_look_ahead(tmp_path: Path) -> None:
    write_random_predictor(tmp_path / "predictor", layer=7)
    looks_ahead = {"admission": {"policy": "lookahead"}}
    own = looks_ahead | {"predictor": {"address": "10.0.0.1:7", "layer": 3}}
    config = {
        "model": "smollm2-135m",
        "replicas": [looks_ahead, {}, own],
        "predictor": {"models": [str(tmp_path / "predictor")], "max_rows": 9},
    }
    made = plan(tmp_path, json.dumps(config))
    address = next(unit.address for unit in made.units if unit.kind is UnitKind.PREDICTOR)
    links = [config_of(made, f"replica-{index}.scheduler")["predictor"] for index in range(3)]
    assert links == [{"address": address, "layer": 7}, None, {"address": "10.0.0.1:7", "layer": 3}]
    assert config_of(made, "predictor")["max_rows"] == 9
    PredictorConfig.model_validate(config_of(made, "predictor"))


def test_a_predictor_that_is_not_there_is_named(tmp_path: Path) -> None:
    config = {"model": "smollm2-135m", "predictor": {"models": [str(tmp_path / "none")]}}
    with pytest.raises(ConfigError, match=r"none/config\.json: No such file or directory; name a folder"):
        plan(tmp_path, json.dumps(config))


@pytest.mark.parametrize(
    ("replica", "problem"),
    [
        ({"admission": {"policy": "aggressive"}}, "predictor: admission.policy aggressive does not use it"),
        ({"engine": "fake"}, "predictor: admission.policy aggressive does not use it"),
    ],
)
def test_a_predictor_that_nothing_would_use_is_refused(tmp_path: Path, replica: dict[str, Any], problem: str) -> None:
    link = {"predictor": {"address": "10.0.0.1:7", "layer": 3}}
    with pytest.raises(ConfigError, match=problem):
        plan(tmp_path, json.dumps({"model": "smollm2-135m", "replicas": [replica | link]}))
