"""The compose files against the official schema, the services' own configuration, and one another.

compose-spec.json is schema/compose-spec.json of github.com/compose-spec/compose-spec at 170098b (Apache-2.0).
"""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import jsonschema
import pytest
from ruamel.yaml import YAML

from services.common.address import split_address
from services.common.config import ConfigModel
from services.common.config_file import load_config
from services.predictor.config import PredictorConfig
from services.router.config import RouterConfig
from services.scheduler.config import SchedulerConfig
from services.workers.config import StageConfig
from tests.support.compose_project import FOLDER, Project, read_project, variables_of

SCHEMA = Path(__file__).with_name("compose-spec.json")
TOPOLOGIES = {"one node": ("one-node.yaml",), "three nodes": ("node-a.yaml", "node-b.yaml", "node-c.yaml")}
FILES = sorted({*(file for files in TOPOLOGIES.values() for file in files), "common.yaml"})
CONFIGS: dict[str, type[ConfigModel]] = {
    "services.router": RouterConfig,
    "services.scheduler": SchedulerConfig,
    "services.workers": StageConfig,
    "services.predictor": PredictorConfig,
}
VARIABLES = {"FORERUN_IMAGE": "forerun:test", "FORERUN_MODELS": "/models", "FORERUN_SECRETS": "/secrets"}
PORTS_OF_OTHERS = {"redis": {6379}, "otel-collector": {4317}, "jaeger": {4317, 16686}, "prometheus": {9090}}


@pytest.fixture(params=list(TOPOLOGIES), ids=list(TOPOLOGIES))
def projects(request: pytest.FixtureRequest) -> list[Project]:
    return [read_project(name, VARIABLES) for name in TOPOLOGIES[request.param]]


@pytest.mark.parametrize("name", FILES)
def test_files_are_compose_files(name: str) -> None:
    document = YAML(typ="safe").load((FOLDER / name).read_text())
    jsonschema.validate(document, json.loads(SCHEMA.read_text()))


def test_merged_services_are_compose_services(projects: list[Project]) -> None:
    for project in projects:
        jsonschema.validate(project.document, json.loads(SCHEMA.read_text()))


def test_every_variable_is_explained_and_every_explained_one_is_used() -> None:
    used = {name for file in FILES for name in variables_of((FOLDER / file).read_text())}
    lines = (FOLDER / ".env.example").read_text().splitlines()
    explained = {match[1] for line in lines if (match := re.match(r"(?:# )?([A-Z0-9_]+)=", line))}
    assert explained == used


def test_explained_defaults_are_the_files_own() -> None:
    text = "".join((FOLDER / file).read_text() for file in FILES)
    for name, default in re.findall(r"^# ([A-Z0-9_]+)=(.+)$", (FOLDER / ".env.example").read_text(), re.MULTILINE):
        assert f"${{{name}:-{default}}}" in text


@pytest.mark.parametrize("missing", sorted(VARIABLES))
def test_what_must_be_set_is_asked_for(missing: str) -> None:
    with pytest.raises(KeyError, match=missing):
        read_project("node-a.yaml", {key: value for key, value in VARIABLES.items() if key != missing})


def test_every_address_is_where_somebody_listens(projects: list[Project]) -> None:
    listening = {name: listens_on(config) for name, config in configs(projects)} | PORTS_OF_OTHERS
    dialled = [address for _, config in configs(projects) for address in addresses(config)]
    assert dialled
    present = {name for project in projects for name in project.services}
    for host, port in dialled:
        assert host in present, f"nobody is called {host}"
        assert port in listening[host], f"{host} does not listen on {port}"


def test_health_is_asked_where_the_service_listens(projects: list[Project]) -> None:
    for project in projects:
        for name, config in configs([project]):
            test = project.services[name]["healthcheck"]["test"]
            assert test[:3] == ["CMD", "forerun", "health"]
            assert split_address(test[3])[1] == split_address(config.server.listen)[1]
            files = dict(zip(test[4::2], test[5::2], strict=True))
            assert files["--ca-file"] == str(config.server.tls.ca_file)


def test_services_see_the_files_that_they_name(projects: list[Project]) -> None:
    for project in projects:
        for name, config in configs([project]):
            service = project.services[name]
            seen = {f"/run/secrets/{secret}" for secret in service["secrets"]}
            seen |= {volume.split(":")[1] for volume in service.get("volumes", ())}
            for path in paths(config.model_dump()):
                assert any(path.is_relative_to(each) for each in seen), path
            assert set(service["secrets"]) <= set(project.document["secrets"])


def test_nothing_runs_as_root_or_keeps_a_default_password(projects: list[Project]) -> None:
    for project in projects:
        for name in project.services.keys() & {*project.forerun_services(), "redis"}:
            service = project.services[name]
            assert (service["user"], service["read_only"], service["cap_drop"]) == ("10001:10001", True, ["ALL"])
            assert "no-new-privileges:true" in service["security_opt"]
        text = project.file.read_text().lower()
        assert not re.search(r"password(?!__file)[^\n]*[:=] *[^\s:/]+$", text, re.MULTILINE)


def test_only_routers_are_reached_from_outside(projects: list[Project]) -> None:
    for project in projects:
        for name, service in project.services.items():
            open_ports = [port for port in service.get("ports", ()) if not str(port).startswith("127.0.0.1:")]
            assert not open_ports or name.startswith("router-"), f"{name}: {open_ports}"


def test_grpc_has_tls_and_pages_may_be_reached(projects: list[Project]) -> None:
    for _, config in configs(projects):
        assert config.server.tls is not None
        assert config.server.tls.require_client_cert
        # What a page that other machines reach asks for (services/common/metrics.py).
        assert config.server.allow_plaintext
        ledger = getattr(config, "ledger", None)
        assert ledger is None or ledger.url.startswith("rediss://")


def test_a_stop_waits_for_requests_in_flight(projects: list[Project]) -> None:
    for project in projects:
        for name, config in configs([project]):
            grace = float(project.services[name]["stop_grace_period"].removesuffix("s"))
            assert grace > config.server.drain_timeout_s + 5


def test_prometheus_asks_every_page_of_three_nodes() -> None:
    projects = [read_project(name, VARIABLES) for name in TOPOLOGIES["three nodes"]]
    document = YAML(typ="safe").load((FOLDER / "config" / "prometheus.yml").read_text())
    asked = {target for each in document["scrape_configs"][0]["static_configs"] for target in each["targets"]}
    pages = {f"{name}:{port}" for name, config in configs(projects) for port in pages_of(config)}
    assert asked == {page for page in pages if not page.startswith("predictor:")}


def configs(projects: Sequence[Project]) -> Iterator[tuple[str, Any]]:
    """By service: its configuration as its command line gives it."""
    for project in projects:
        for name, command in project.forerun_services().items():
            assert command[:2] == ["python", "-m"]
            config, file, *rest = command[3:]
            assert config == "--config"
            assert set(rest[::2]) <= {"--set"}
            yield name, load_config(project.mounted(name)[file], CONFIGS[command[2]], rest[1::2])


def addresses(config: Any) -> Iterator[tuple[str, int]]:
    """Host and port of everything that a service dials or tells others to dial."""
    for ranks in getattr(config, "stages", ()):
        yield from map(split_address, ranks)
    if getattr(config, "advertise", None):
        yield split_address(config.advertise)
    ledger = getattr(config, "ledger", None)
    for url in (config.telemetry.otlp_endpoint, ledger and ledger.url):
        if url:
            parts = urlsplit(url)
            yield str(parts.hostname), int(parts.port or 0)


def listens_on(config: Any) -> set[int]:
    """Ports that other machines reach."""
    found = [config.server.listen, getattr(config, "http_listen", None)]
    assert all(split_address(address)[0] == "0.0.0.0" for address in found if address)
    return {split_address(address)[1] for address in found if address}


def pages_of(config: Any) -> list[int]:
    """Ports of Prometheus pages."""
    pages = [config.server.metrics_listen, getattr(config, "engine_metrics_listen", None)]
    return [split_address(page)[1] for page in pages if page]


def paths(value: Any) -> Iterator[Path]:
    """All files and folders in a configuration."""
    if isinstance(value, Path):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from paths(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from paths(each)
