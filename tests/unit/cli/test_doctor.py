"""What ``forerun doctor`` finds, and what it says to do."""

import json
import resource
import socket
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from services.cli.doctor.command import command
from services.cli.doctor.finding import Finding, Level
from services.cli.doctor.machine_checks import (
    check_cores,
    check_disk,
    check_engine,
    check_gpus,
    check_memory,
    check_open_files,
    check_shared_memory,
)
from services.cli.doctor.system_checks import check_model, check_parts, check_ports, check_redis
from services.cli.local_config import LocalConfig
from services.cli.model_store import ModelStore
from services.common.expert import Expert
from services.common.expert_action import Action
from tests.support.small_route_net import write_route_net
from tests.support.tiny_model import write_tiny_model


def config(**fields: Any) -> LocalConfig:
    free = {"server": {"listen": "127.0.0.1:0", "metrics_listen": None}, "http_listen": None}
    router = free | fields.pop("router", {})
    return LocalConfig.model_validate({"model": "somewhere", "router": router, "redis": {"start": False}} | fields)


def level(finding: Finding) -> Level:
    """Whoever is told of something is told what to do."""
    assert bool(finding.fix) == (finding.level is not Level.OK)
    return finding.level


def test_cores() -> None:
    pinned = config(replicas=[{"cores": [[0, 7]]}])
    assert level(check_cores(pinned, {0, 1})) is Level.FAILED
    assert level(check_cores(pinned, {0, 7})) is Level.OK
    assert level(check_cores(config(replicas=[{"pipeline_stages": 3}]), {0, 1})) is Level.WARNING


def test_memory() -> None:
    two = config(replicas=[{"engine_args": {"kv_cache_memory_bytes": 100}}, {"pipeline_stages": 2}])
    assert level(check_memory(two, 1000, 2099)) is Level.FAILED
    assert level(check_memory(two, 1000, 2100)) is Level.OK
    assert level(check_memory(two, None, 1)) is Level.OK
    assert level(check_memory(config(replicas=[{"engine": "fake"}]), 1000, 1)) is Level.OK


def test_open_files() -> None:
    assert level(check_open_files((1024, 1_048_576))) is Level.WARNING
    assert "65536" in check_open_files((1024, 1_048_576)).fix
    assert "2048" in check_open_files((1024, 2048)).fix
    assert level(check_open_files((65_536, 65_536))) is Level.OK
    assert level(check_open_files((resource.RLIM_INFINITY, resource.RLIM_INFINITY))) is Level.OK


def test_shared_memory_and_disk(tmp_path: Path) -> None:
    assert level(check_shared_memory(tmp_path / "none")) is Level.WARNING
    assert level(check_shared_memory(tmp_path)) is Level.OK
    assert level(check_disk(tmp_path / "not" / "yet" / "there")) is Level.OK


def test_gpus() -> None:
    assert level(check_gpus(config(replicas=[{"pipeline_stages": 2}]), lambda: 1)) is Level.FAILED
    assert level(check_gpus(config(replicas=[{"pipeline_stages": 2}]), lambda: 2)) is Level.OK
    assert level(check_gpus(config(replicas=[{"devices": [3]}]), lambda: 3)) is Level.FAILED
    assert level(check_gpus(config(replicas=[{"devices": "cpu"}]), lambda: 0)) is Level.OK


def test_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    assert level(check_engine(config())) is Level.OK
    for version in ("", "0.1.0"):
        monkeypatch.setattr("services.cli.doctor.machine_checks.vllm_version", lambda version=version: version)
        assert level(check_engine(config())) is Level.FAILED
        assert level(check_engine(config(replicas=[{"engine": "fake"}]))) is Level.OK


def test_ports() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        (finding,) = check_ports(config(router={"http_listen": address}))
    assert level(finding) is Level.FAILED
    assert f"router.http_listen: {address} is taken by" in finding.found
    (finding,) = check_ports(config())
    assert level(finding) is Level.OK


def test_the_models_files(tmp_path: Path) -> None:
    store = ModelStore(tmp_path / "cache")

    def of(model: str) -> tuple[Level, int | None]:
        finding, size = check_model(config(model=model), store)
        return level(finding), size

    assert of("smollm2-135m") == (Level.WARNING, None)
    assert of("nobody knows") == (Level.FAILED, None)
    assert of("somebody/something") == (Level.OK, None)
    folder = write_tiny_model(tmp_path / "tiny")
    assert of(str(folder)) == (Level.FAILED, None)
    (folder / "model.safetensors").write_bytes(b"12345")
    assert of(str(folder)) == (Level.OK, 5)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}))
    assert of(str(folder)) == (Level.FAILED, None)
    (folder / "config.json").write_text("{")
    assert of(str(folder)) == (Level.FAILED, None)


def test_trained_parts(tmp_path: Path) -> None:
    model = write_route_net(tmp_path / "router", {Action(Expert.NGRAM, 2): (1.2, 0.1)}, 100)
    named = config(
        router={"experts": {"model": str(model)}},
        replicas=[
            {"experts": {"depth_model": str(tmp_path), "drafter": {"kind": "eagle3", "model": str(tmp_path)}}},
            {"pipeline_stages": 2, "speculation": {"draft_adapter": str(tmp_path)}},
        ],
    )
    found = {each.check: level(each) for each in check_parts(named)}
    assert found == {
        "route model": Level.OK, "depth model": Level.FAILED, "drafter": Level.FAILED, "draft adapter": Level.FAILED,
    }  # fmt: skip
    assert list(check_parts(config())) == []


def test_a_redis_that_is_away() -> None:
    away = config(ledger={"url": "redis://127.0.0.1:1/0", "connect_timeout_s": 0.2})
    (finding,) = check_redis(away)
    assert level(finding) is Level.FAILED
    (finding,) = check_redis(config())
    assert level(finding) is Level.WARNING


def test_the_command(tmp_path: Path) -> None:
    file = tmp_path / "local.yaml"
    router = '{server: {listen: "127.0.0.1:0", metrics_listen: null}, http_listen: null, tokenizer: false}'
    file.write_text(f"model: x\nrouter: {router}\nreplicas: [{{engine: fake}}]\n")
    well = CliRunner().invoke(command, ["-f", str(file), "--json", "--run-dir", str(tmp_path)])
    findings = [json.loads(line) for line in well.output.splitlines()]
    assert well.exit_code == 0, well.output
    assert {each["check"] for each in findings} >= {"engine", "model", "ports", "Redis", "memory", "open files"}
    ill = CliRunner().invoke(
        command, ["-f", str(file), "--set", "redis.executable=/nowhere", "--run-dir", str(tmp_path)]
    )
    assert ill.exit_code == 1
    assert "→" in ill.output
    assert "1 failed" in ill.output
    assert CliRunner().invoke(command, ["-f", str(tmp_path / "none.yaml")]).exit_code == 2
